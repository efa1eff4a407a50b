"""The ways to learn new classes beside the old ones: a new head, a network trained further, or OpenCon.

Each is a function from what is known by now, with the rows of the new classes already in it, to `ClassifierUpdate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap.activations import Head
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld.extended_network import ClassifierUpdate, grow_head
from offmap.openworld.inputs import LabeledInputs
from offmap.openworld.kernel_map import LANDMARKS, fit_kernel_map, prefers_kernel
from offmap.registry import Registry
from offmap.typing import Array

Progress = Callable[[str, float], None]
EPOCHS = 12
LEARNING_RATE = 3e-3
STRENGTH = 10.0
KERNEL_STRENGTH = 100.0


@dataclass(frozen=True)
class LearnerInputs:
    """The inputs of a learner.

    Parameters
    ----------
    train
        Labelled inputs of all classes, old and new.
    unlabelled
        Inputs nobody named; only OpenCon reads them.
    class_names
        Of all classes.
    n_old
        How many of them were known before; they come first.
    network
        The network in use; `None` when there are only features.
    seed
        Of all that is random.
    progress
        Told in words what goes on, and which share is done.
    settings
        Of the learner, by name.
    """

    train: LabeledInputs
    unlabelled: LabeledInputs
    class_names: tuple[str, ...]
    n_old: int
    network: Network | None
    seed: int
    progress: Progress
    settings: dict[str, Any]


LEARNERS: Registry[Callable[[LearnerInputs], ClassifierUpdate]] = Registry("learner", group="offmap.learners")


def class_means_head(features: Array, labels: Array, n_classes: int) -> Head:
    """Fit the linear rule of classes that share one covariance: w_c = Σ⁻¹μ_c, b_c = −½ μ_cᵀΣ⁻¹μ_c (Fisher 1936).

    The covariance is shrunk towards a sphere by Ledoit and Wolf's (2004) share, so that few rows are enough.

    Examples
    --------
    >>> rows = np.array([[0.0, 1.0], [0.2, 1.1], [3.0, 0.0], [3.1, 0.2]])
    >>> class_means_head(rows, np.array([0, 0, 1, 1]), 2)(rows).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    from sklearn.covariance import ledoit_wolf

    rows = np.asarray(features, np.float64)
    means = np.stack([rows[labels == label].mean(axis=0) for label in range(n_classes)])
    covariance, _ = ledoit_wolf(rows - means[labels], assume_centered=True)
    ridge = 1e-6 * max(float(np.trace(covariance)) / len(covariance), 1e-12)
    weight = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), means.T).T
    return Head(weight, -0.5 * (weight * means).sum(axis=1))


def linear_head(features: Array, labels: Array, n_classes: int, strength: float = STRENGTH) -> Head:
    """Fit a multinomial logistic regression on standardised columns, and return it as a head over the features.

    Parameters
    ----------
    features, labels : array
        One row and one class number per input; every class needs one row at least.
    n_classes : int
        The number of classes.
    strength : float, default 10
        How closely to follow the training rows: the inverse of the L2 penalty, for rows of length about 1.

    Examples
    --------
    >>> rows = np.array([[0.0, 1.0], [0.2, 1.1], [3.0, 0.0], [3.1, 0.2]])
    >>> linear_head(rows, np.array([0, 0, 1, 1]), 2)(rows).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    rows = np.asarray(features, np.float64)
    centre, spread = rows.mean(axis=0), rows.std(axis=0)
    scale = 1 / ((spread + 1e-6 * spread.max() + 1e-12) * np.sqrt(rows.shape[1]))
    made = _logistic_regression((rows - centre) * scale, labels, n_classes, strength)
    weight = made.weight.astype(np.float64) * scale
    return Head(weight, made.bias - weight @ centre)


def _logistic_regression(rows: Array, labels: Array, n_classes: int, strength: float) -> Head:
    from sklearn.linear_model import LogisticRegression

    present = len(np.unique(labels))
    if present < n_classes:
        raise InputError(f"{n_classes} classes but rows of {present} to learn from; every class needs one at least")
    if n_classes == 1:
        return Head(np.zeros((1, rows.shape[1])))
    model = LogisticRegression(C=strength, max_iter=200, tol=1e-5).fit(rows, labels)
    weight, bias = model.coef_, model.intercept_
    if n_classes == 2:  # scikit-learn keeps one row for two classes
        weight, bias = np.concatenate([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    return Head(weight, bias)


@LEARNERS.register("linear")
def linear(material: LearnerInputs) -> ClassifierUpdate:
    """Keep the encoder and train a linear head over its features; works on features alone."""
    settings = {"strength": STRENGTH, **material.settings}
    _no_more({name: value for name, value in settings.items() if name != "strength"}, "linear")
    material.progress("training a linear head", 0.2)
    train = material.train
    head = linear_head(train.features, train.labels, len(material.class_names), settings["strength"])
    return ClassifierUpdate(material.class_names, head)


def mapped_head(features: Array, labels: Array, n_classes: int, strength: float = KERNEL_STRENGTH) -> Head:
    """Fit a multinomial logistic regression on features of a kernel map, which are on one scale already.

    Parameters
    ----------
    features, labels, n_classes
        As `linear_head` takes them.
    strength : float, default 100
        The inverse of the L2 penalty.

    Examples
    --------
    >>> rows = np.array([[0.0, 1.0], [0.2, 1.1], [3.0, 0.0], [3.1, 0.2]])
    >>> mapped_head(rows, np.array([0, 0, 1, 1]), 2)(rows).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    return _logistic_regression(np.asarray(features, np.float64), labels, n_classes, strength)


def fit_kernel(
    train: LabeledInputs,
    class_names: tuple[str, ...],
    seed: int = 0,
    strength: float = KERNEL_STRENGTH,
    landmarks: int = LANDMARKS,
) -> ClassifierUpdate:
    """Fit a linear head over a kernel map of features.

    Parameters
    ----------
    train : LabeledInputs
        Labelled inputs of all classes.
    class_names : tuple of str
        Of all classes.
    seed : int, default 0
        Draws the rows that the map compares with.
    strength : float, default 100
        As `mapped_head` takes it.
    landmarks : int, default 500
        As `fit_kernel_map` takes it.
    """
    mapped = fit_kernel_map(train.features, seed, landmarks)
    head = mapped_head(mapped(train.features), train.labels, len(class_names), strength)
    return ClassifierUpdate(class_names, head, feature_map=mapped)


def needs_kernel(train: LabeledInputs, seed: int = 0) -> bool:
    """Tell whether classes are told apart better over a kernel map of their features, by cross-validation."""
    return prefers_kernel(train.features, train.labels, linear_head, mapped_head, seed)


@LEARNERS.register("kernel")
def kernel(material: LearnerInputs) -> ClassifierUpdate:
    """Keep the encoder and train a linear head over a Gaussian kernel of its features: boundaries may be curved."""
    settings = {"strength": KERNEL_STRENGTH, "landmarks": LANDMARKS, **material.settings}
    _no_more({name: value for name, value in settings.items() if name not in ("strength", "landmarks")}, "kernel")
    material.progress("training a head over a kernel", 0.2)
    return fit_kernel(material.train, material.class_names, material.seed, **settings)


@LEARNERS.register("prototypes")
def prototypes(material: LearnerInputs) -> ClassifierUpdate:
    """Keep the encoder; every class, old and new, is its mean. Takes no training, works on features alone."""
    _no_more(material.settings, "prototypes")
    material.progress("placing class means", 0.5)
    head = class_means_head(material.train.features, material.train.labels, len(material.class_names))
    return ClassifierUpdate(material.class_names, head)


@LEARNERS.register("finetune")
def finetune(material: LearnerInputs) -> ClassifierUpdate:
    """Train the network further on old and new classes together, new rows of its head starting at class means.

    Old classes are in every epoch with all their training inputs: what is rehearsed is not forgotten.
    """
    from offmap.models.classify import train_classifier

    network, train = material.network, material.train
    if network is None or train.inputs is None:
        raise InputError("finetune: a network and inputs are needed; learn with 'prototypes' or 'opencon'")
    settings = {"epochs": EPOCHS, "learning_rate": LEARNING_RATE, **material.settings}
    epochs = settings["epochs"]
    n_classes = len(material.class_names)
    there = network(train.inputs[:1]).n_classes
    means = [train.features[train.labels == label].mean(axis=0) for label in range(there, n_classes)]
    module = grow_head(network, n_classes, means)
    module.requires_grad_(True)

    def tell(epoch: int, loss: float) -> None:
        material.progress(f"training, epoch {epoch} of {epochs}, loss {loss:.3f}", epoch / epochs)

    train_classifier(module, train.inputs, train.labels, seed=material.seed, on_epoch=tell, **settings)
    return ClassifierUpdate(material.class_names, network=Network(module, network.layer))


@LEARNERS.register("opencon")
def opencon(material: LearnerInputs) -> ClassifierUpdate:
    """OpenCon (thesis, chapter 8) on the features: labelled rows, and all inputs without labels beside them."""
    from offmap.learning import learn

    material.progress("learning with OpenCon", 0.1)
    both = material.train + material.unlabelled
    settings = dict(material.settings)
    space = settings.pop("space", "features")
    model = learn(
        both.rows(space),
        both.labels,
        len(material.class_names),
        objective="opencon",
        seed=material.seed,
        progress=False,
        **settings,
    )
    return ClassifierUpdate(material.class_names, model=model, reads_inputs=space == "inputs")


def check_learner(name: str) -> None:
    """Raise an error unless this is the name of a learner, or ``"auto"``."""
    if name != "auto":
        LEARNERS.get(name, also=("auto",))


def choose(name: str, network: Network | None, train: LabeledInputs, seed: int = 0) -> str:
    """Return the name of the learner.

    Parameters
    ----------
    name : str
        As asked for. ``"auto"`` trains a torch network further where there are inputs. Features without a network get a
        linear head, or one over a kernel where that is significantly better in cross-validation.
    network : Network or None
        What is there to train further.
    train : LabeledInputs
        Inputs with their classes, known and proposed; -1 for none.
    seed : int, default 0
        Of the cross-validation.
    """
    check_learner(name)
    if name != "auto":
        return name
    if network is None:
        return "kernel" if needs_kernel(train[train.labels >= 0], seed) else "linear"
    return "finetune" if network.model is not None and train.inputs is not None else "linear"


def _no_more(settings: dict[str, Any], name: str) -> None:
    if settings:
        raise InputError(f"{name}: there is no setting {sorted(settings)[0]!r}; it has none")
