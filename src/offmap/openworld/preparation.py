"""The start of the rounds: a state made from labelled data, and unlabelled data as a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from offmap.activations import Head
from offmap.detection import Detector
from offmap.detection import detector as make_detector
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld.extended_network import ClassifierUpdate
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.learners import fit_kernel, linear_head, needs_kernel
from offmap.openworld.state import LearningState, start
from offmap.typing import Array

EPOCHS = 20


def begin(
    detector: str | Detector,
    labels: Any,
    *,
    features: Any = None,
    inputs: Any = None,
    network: Network | None = None,
    head: Head | None = None,
    class_names: Sequence[str] | None = None,
    held_out: tuple[Any, Mapping[str, Any]] | None = None,
    tpr: float = 0.95,
    learner: str = "auto",
    seed: int = 0,
) -> LearningState:
    """Make the state that rounds begin with from labelled data.

    Parameters
    ----------
    detector : str or Detector
        A detector's text form, or one that is fitted and calibrated already.
    labels : array-like
        Class numbers from 0; rows with -1 are left out.
    features, inputs : array-like, default=None
        One of them, one row per label. Without a network, a small convolutional one is trained on pictures, and rows
        of other inputs are taken as features.
    network : Network or None, default=None
        Runs inputs.
    head : Head or None, default=None
        The last layer over given features; a linear one is trained when absent.
    class_names : sequence of str or None, default=None
        One per class.
    held_out : tuple of Any, mapping of str to Any or None, default=None
        Labels, and features or inputs by name, that the network was not trained on; see `KnownSplits.of`.
    tpr : float, default=0.95
        The share of known inputs to accept; lowered where too few calibrate to promise it.
    learner : str, default="auto"
        How the rounds will learn. Over features without a head, ``"kernel"`` makes the first classifier that of a
        kernel map too, and ``"auto"`` finds out by cross-validation whether that is better than a linear head.
    seed : int, default=0
        Seed of the split into parts, and of training.

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
        network = train_cnn(inputs, labels, seed, whole=held_out is not None)
    whole = _labelled(labels, network, features, inputs)
    n_classes = int(whole.labels.max()) + 1
    names = [str(label) for label in range(n_classes)] if class_names is None else class_names
    if held_out is None:
        known = KnownSplits.split(whole.features, whole.labels, names, whole.inputs, seed=seed)
    else:
        known = KnownSplits.of(whole, _labelled(held_out[0], network, **held_out[1]), names, seed)
    made = make_detector(detector) if isinstance(detector, str) else detector
    promised = min(tpr, 1 - 1 / (len(known.calibration) + 1))
    if network is None and not made.is_fitted:
        learned = _fit_known(known, head, learner, seed)
        made.fit(learned.activations(known.train))
        made.calibrate(learned.activations(known.calibration), tpr=promised)
        if learned.feature_map is not None:
            return LearningState(made, learned, known)
    return start(made, known, network, promised)


def _fit_known(known: KnownSplits, head: Head | None, learner: str, seed: int) -> ClassifierUpdate:
    """Return the classifier of the labelled classes over their features."""
    if head is not None:
        return ClassifierUpdate(known.class_names, head)
    if learner == "kernel" or (learner == "auto" and needs_kernel(known.train, seed)):
        return fit_kernel(known.train, known.class_names, seed)
    head = linear_head(known.train.features, known.train.labels, len(known.class_names))
    return ClassifierUpdate(known.class_names, head)


def train_cnn(pictures: Any, labels: Any, seed: int, whole: bool = False) -> Network:
    """Train a small convolutional network for pictures, channels first, on what `KnownSplits.split` trains on.

    Parameters
    ----------
    pictures, labels : array-like
        One label per picture; pictures labelled -1 are left out.
    seed : int
        Seed of the split and the training.
    whole : bool, default=False
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


def read_stream(state: LearningState, *, features: Any = None, inputs: Any = None, texts: Any = None) -> LabeledInputs:
    """Return unlabelled data as inputs of a round; without a network, inputs are features."""
    if features is None and inputs is not None and state.network is None:
        features, inputs = np.asarray(inputs), None
    made = state.part(features, inputs)
    return made if texts is None else replace(made, texts=np.array(texts, object))


def cut(stream: Mapping[str, Array], rounds: int) -> list[dict[str, Array]]:
    """Unlabelled data in so many parts, in the order it is in.

    Examples
    --------
    >>> [part["features"].shape for part in cut({"features": np.zeros((5, 2))}, 2)]
    [(3, 2), (2, 2)]
    """
    n = len(next(iter(stream.values())))
    return [{name: array[rows] for name, array in stream.items()} for rows in np.array_split(np.arange(n), rounds)]
