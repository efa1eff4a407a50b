"""`LearningState`: a detector in use, its classifier, and the labelled inputs that it is tested with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offmap.detection import Detector, Verdicts
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld.deployment import UNKNOWN, Deployment
from offmap.openworld.extended_network import ClassifierUpdate, ExtendedNetwork
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.learners import class_means_head
from offmap.typing import Array


@dataclass(frozen=True)
class LearningState:
    """A calibrated detector in use, with its classifier and the inputs that it is tested with.

    Parameters
    ----------
    detector
        Fitted and calibrated on `learned.activations`.
    learned
        From inputs to activations over all classes.
    known
        Labelled inputs, with features of `network`.
    network
        Whose features `known` holds; `None` when there are only features.
    """

    detector: Detector
    learned: ClassifierUpdate
    known: KnownSplits
    network: Network | None = None

    @property
    def deployment(self) -> Deployment:
        """The detector, network and class names that go into service."""
        return Deployment(self.detector, self.learned.deployable(self.network), self.known.class_names)

    def part(self, features: Any = None, inputs: Any = None, labels: Any = None) -> LabeledInputs:
        """Return inputs as a round takes them; the network is run over inputs whose features are not given."""
        if features is None:
            if inputs is None or self.network is None:
                raise InputError("there is no network here to run over inputs; give features")
            features = self.network.extract(inputs, progress=False).features
        return LabeledInputs.of(features, labels, inputs)

    def judge(self, part: LabeledInputs) -> Verdicts:
        """Return the verdicts of the detector on some inputs."""
        return self.detector(self.learned.activations(part, self.detector.requirements))

    def assign(self, part: LabeledInputs) -> Array:
        """Return the class of each input, -1 where the detector calls it unknown."""
        if not len(part):
            return np.zeros(0, np.int64)
        verdicts = self.judge(part)
        predicted = self.learned.predict(part) if verdicts.predicted is None else verdicts.predicted
        return np.where(verdicts.known, predicted, UNKNOWN)

    def flagged(self, part: LabeledInputs) -> LabeledInputs:
        """Return those inputs that the detector calls unknown."""
        return part[~self.judge(part).known]


def start(detector: Detector, known: KnownSplits, network: Network | None = None, tpr: float = 0.95) -> LearningState:
    """Make the state before the first round.

    Parameters
    ----------
    detector
        Fitted and calibrated on the network's activations, or not fitted at all: then both is done here.
    known
        Labelled inputs of the classes it knows.
    network
        Whose features `known` holds. Without it, and without a head in the detector, the classes are their means.
    tpr
        The share of known inputs to accept, where the detector is fitted and calibrated here.

    Examples
    --------
    >>> import offmap
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(300) % 3
    >>> known = KnownSplits.split(4 * np.eye(5)[truth] + rng.normal(size=(300, 5)), truth, ("ant", "bee", "cat"))
    >>> state = start(offmap.detector("knn(5)"), known)
    >>> float((state.learned.predict(known.held_out) == known.held_out.labels).mean()) > 0.9
    True
    """
    names = known.class_names
    if isinstance(network, ExtendedNetwork) and network.reads_features:
        return _start_mapped(detector, known, network)
    head = detector.head
    if network is not None:
        inputs = known.train.inputs
        if inputs is not None:
            network(inputs[:1])
        head = network.head if inputs is not None else head
    if head is None:
        head = class_means_head(known.train.features, known.train.labels, len(names))
    if head.n_classes != len(names):
        raise InputError(f"the network knows {head.n_classes} classes, the labelled inputs {len(names)}")
    learned = ClassifierUpdate(names, head)
    if not detector.is_fitted:
        detector = refit_detector(detector, learned, known, tpr, by_class=False)
    elif detector.calibration is None:
        raise InputError(f"{detector}: it has no threshold; calibrate it first")
    return LearningState(detector, learned, known, network)


def _start_mapped(detector: Detector, known: KnownSplits, network: ExtendedNetwork) -> LearningState:
    """Return the state of a deployment whose features go through a learned map; there is no network to run."""
    learned = network.update
    if len(learned.class_names) != len(known.class_names):
        raise InputError(
            f"the network knows {len(learned.class_names)} classes, the labelled inputs {len(known.class_names)}"
        )
    return LearningState(detector, replace(learned, class_names=known.class_names), known)


def refit_detector(
    detector: Detector,
    learned: ClassifierUpdate,
    known: KnownSplits,
    tpr: float,
    by_class: bool,
    confidence: float | None = None,
) -> Detector:
    """Fit and calibrate a detector of the same kind anew, with the parameters that were chosen."""
    from offmap.detection import detector as make_detector

    made = make_detector(detector.chosen)
    made.fit(learned.activations(known.train, made.requirements))
    held_out = learned.activations(known.calibration, made.requirements)
    return made.calibrate(held_out, tpr=tpr, by_class=by_class, confidence=confidence)


def read_with_network(network: Network, known: KnownSplits) -> KnownSplits:
    """Return the same labelled inputs with features of another network."""

    def features(part: LabeledInputs) -> Array:
        return np.asarray(network.extract(part.inputs, progress=False).features)

    return known.read_by(features)
