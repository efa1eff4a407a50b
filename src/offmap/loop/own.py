"""The loop on data of one's own: labelled inputs, a pile without labels, with or without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offmap.activations import Head
from offmap.detection import Detector, detector
from offmap.errors import InputError
from offmap.loop.parts import Known, Part
from offmap.loop.state import State, start
from offmap.network import Network

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
    seed: int = 0,
) -> State:
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
    seed
        Of the split into parts, and of training.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(300) % 3
    >>> begin("knn(5)", truth, features=4 * np.eye(5)[truth] + rng.normal(size=(300, 5))).known
    Known(3 classes: 180 to train, 60 to calibrate, 60 held out)
    """
    own = np.asarray(labels)
    keep = own >= 0
    if not keep.any():
        raise InputError("no input has a label; some are needed to know what is known")
    if features is None and inputs is None:
        raise InputError("give features or inputs, one row per label")
    pictures = None if inputs is None else np.asarray(inputs)[keep]
    if features is not None:
        rows = np.asarray(features)[keep]
    elif network is None and pictures is not None and pictures.ndim == 2:
        rows, pictures = pictures, None
    else:
        assert pictures is not None
        network = network or trained(pictures, own[keep], class_names, seed)
        rows = network.extract(pictures, progress=False).features
    known = Known.split(rows, own[keep], class_names, pictures, seed=seed)
    made = detector(guard) if isinstance(guard, str) else guard
    if head is not None and not made.is_fitted:
        from offmap.activations import Activations

        made.fit(Activations(known.train.features, head, None, known.train.labels))
        made.calibrate(Activations(known.calibration.features, head))
    return start(made, known, network)


def trained(pictures: Any, labels: Any, class_names: Sequence[str] | None, seed: int) -> Network:
    """A small convolutional network for pictures with channels first, trained on those that the split trains on."""
    from offmap.nets.classify import train_classifier
    from offmap.nets.cnn import CNN

    if pictures.ndim != 4 or pictures.shape[1] not in (1, 3):
        raise InputError(f"inputs of shape {pictures.shape}: name a network with --model, or give features")
    same = Known.split(np.zeros((len(labels), 1)), labels, class_names, pictures, seed=seed).train
    n_classes = int(np.max(labels)) + 1
    model = CNN(n_classes, channels=pictures.shape[1], seed=seed)
    return Network(train_classifier(model, same.inputs, same.labels, epochs=EPOCHS, seed=seed))


def pile_of(state: State, *, features: Any = None, inputs: Any = None) -> Part:
    """Unlabelled data as a pile: what the guard calls unknown."""
    if features is None and inputs is not None and state.network is None:
        features, inputs = np.asarray(inputs), None
    return state.flagged(state.part(features, inputs))
