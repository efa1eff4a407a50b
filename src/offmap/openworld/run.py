"""The loop on data of one's own: labelled inputs, a pile without labels, with or without a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from offmap.activations import Head
from offmap.detection import Detector, detector
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.result import Round
from offmap.openworld.rounds import NothingFoundError, run_round
from offmap.openworld.state import LearningState, start
from offmap.typing import Array

EPOCHS = 20


def begin(
    guard: str | Detector,
    labels: Any,
    *,
    features: Any = None,
    inputs: Any = None,
    network: Network | None = None,
    head: Head | None = None,
    class_names: Sequence[str] | None = None,
    held_out: tuple[Any, Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> LearningState:
    """A state to begin rounds with, from labelled data.

    Parameters
    ----------
    guard
        A detector's text form, or one that is fitted and calibrated already.
    labels
        Class numbers from 0; rows with -1 are left out.
    features, inputs
        One of them, one row per label. Without a network, a small convolutional one is trained on pictures, and rows
        of other inputs are taken as features.
    network
        Runs inputs.
    head
        The last layer over given features; class means when absent.
    class_names
        One per class.
    held_out
        Labels, and features or inputs by name, that the network was not trained on; see `KnownSplits.of`.
    seed
        Of the split into parts, and of training.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(300) % 3
    >>> begin("knn(5)", truth, features=4 * np.eye(5)[truth] + rng.normal(size=(300, 5))).known
    KnownSplits(3 classes: 180 to train, 60 to calibrate, 60 held out)
    """
    if features is None and inputs is None:
        raise InputError("give features or inputs, one row per label")
    if features is None and network is None and np.ndim(inputs) > 2:
        network = trained(inputs, labels, seed, whole=held_out is not None)
    whole = _labelled(labels, network, features, inputs)
    n_classes = int(whole.labels.max()) + 1
    names = [str(label) for label in range(n_classes)] if class_names is None else class_names
    if held_out is None:
        known = KnownSplits.split(whole.features, whole.labels, names, whole.inputs, seed=seed)
    else:
        known = KnownSplits.of(whole, _labelled(held_out[0], network, **held_out[1]), names, seed)
    made = detector(guard) if isinstance(guard, str) else guard
    if head is not None and not made.is_fitted:
        from offmap.activations import Activations

        made.fit(Activations(known.train.features, head, None, known.train.labels))
        made.calibrate(Activations(known.calibration.features, head))
    return start(made, known, network)


def trained(pictures: Any, labels: Any, seed: int, whole: bool = False) -> Network:
    """A small convolutional network for pictures with channels first, trained on what `KnownSplits.split` trains on.

    Parameters
    ----------
    pictures, labels
        One label per picture; pictures labelled -1 are left out.
    seed
        Of the split and the training.
    whole
        Train on all of them, as there are others to calibrate and measure with.
    """
    from offmap.models.classify import train_classifier
    from offmap.models.cnn import CNN

    array = np.asarray(pictures)
    if array.ndim != 4 or array.shape[1] not in (1, 3):
        raise InputError(f"inputs of shape {array.shape}: name a network with --model, or give features")
    part = LabeledInputs.of(np.zeros((len(array), 1)), labels, array)
    part = part[part.labels >= 0]
    if not whole:
        part = KnownSplits.split(part.features, part.labels, None, part.inputs, seed=seed).train
    model = CNN(int(part.labels.max()) + 1, channels=array.shape[1], seed=seed)
    return Network(train_classifier(model, part.inputs, part.labels, epochs=EPOCHS, seed=seed))


def _labelled(labels: Any, network: Network | None, features: Any = None, inputs: Any = None) -> LabeledInputs:
    """Labelled rows as a part; inputs are run through the network, or are features when there is none."""
    own = np.asarray(labels)
    if not (own >= 0).any():
        raise InputError("no input has a label; some are needed to know what is known")
    if features is None:
        if network is None:
            features, inputs = inputs, None
        else:
            features = network.extract(np.asarray(inputs), progress=False).features
    part = LabeledInputs.of(features, own, inputs)
    return part[part.labels >= 0]


def pile_of(state: LearningState, *, features: Any = None, inputs: Any = None) -> LabeledInputs:
    """Unlabelled data as a pile: what the guard calls unknown."""
    if features is None and inputs is not None and state.network is None:
        features, inputs = np.asarray(inputs), None
    return state.flagged(state.part(features, inputs))


def cut(stream: Mapping[str, Array], rounds: int) -> list[dict[str, Array]]:
    """Unlabelled data in so many parts, in the order it is in.

    Examples
    --------
    >>> [part["features"].shape for part in cut({"features": np.zeros((5, 2))}, 2)]
    [(3, 2), (2, 2)]
    """
    n = len(next(iter(stream.values())))
    return [{name: array[rows] for name, array in stream.items()} for rows in np.array_split(np.arange(n), rounds)]


def run_rounds(
    state: LearningState, streams: Iterable[Mapping[str, Array]], **options: Any
) -> Iterator[tuple[LabeledInputs, Round | None, str, LearningState]]:
    """One round per stream, each on top of the last one that was accepted.

    Yields
    ------
    tuple
        The pile that was flagged, the round (`None` when the pile held no group), why, and the state to go on with.
    """
    for stream in streams:
        pile = pile_of(state, **stream)
        try:
            done = run_round(state, pile, **options)
        except NothingFoundError as error:
            yield pile, None, str(error), state
            continue
        state = done.state
        yield pile, done, done.reason, state
