"""A scenario to try the open-scenario loop in: a network that knows some digits meets all ten, and is measured.

The true classes of the stream are never shown to the loop; they and the test inputs are for measuring alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from offmap.activations import Activations
from offmap.detection import detector as make_detector
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.openworld_run import OpenWorldRun, begin_run
from offmap.openworld.records import RoundRecord
from offmap.openworld.state import LearningState, start
from offmap.typing import Array

DETECTOR = "maxlogit + knn(5)"
EPOCHS = 12
WIDTH = 24
# shares of a known digit: to train, to calibrate, held out, in the stream, to test; of a new one: stream and test
KNOWN_SHARES = (0.45, 0.10, 0.15, 0.10, 0.20)
NEW_SHARES = (0.0, 0.0, 0.0, 0.80, 0.20)


@dataclass(frozen=True)
class Scenario:
    """A network with its detector, the streams it will meet, and test inputs.

    Parameters
    ----------
    state : LearningState
        What is in use at first.
    streams : tuple of LabeledInputs
        Per round the inputs that come in; their labels are the truth, for measuring.
    test : LabeledInputs
        Inputs of all classes for measuring.
    class_names : tuple of str
        Names of all true classes, the known ones first.
    seed : int
        Seed of everything random.
    """

    state: LearningState
    streams: tuple[LabeledInputs, ...]
    test: LabeledInputs
    class_names: tuple[str, ...]
    seed: int

    @property
    def n_known(self) -> int:
        """How many classes were known at first."""
        return len(self.state.known.class_names)

    def met(self, rounds: int) -> Array:
        """List the true classes that were known at first or came in up to a round."""
        seen = [np.arange(self.n_known), *(stream.labels for stream in self.streams[:rounds])]
        return np.unique(np.concatenate(seen))


@dataclass(frozen=True)
class Measured:
    """Shares of test inputs that are right after a round, by their true class.

    Parameters
    ----------
    known : float
        The share among classes known at first, by their own numbers.
    all, new : float
        The shares among all classes met so far and among the new ones, groups matched to classes one to one.
    flagged : float or None
        The share of inputs of classes not learned yet that the detector flags; `None` when none are left.
    accepted : float
        The share of inputs of all classes met so far that the detector calls known.
    """

    known: float
    all: float
    new: float
    flagged: float | None
    accepted: float


@dataclass(frozen=True)
class Step:
    """One round of a simulation.

    Parameters
    ----------
    flagged_unknown : int
        How many of the inputs that were flagged are of classes that nobody had labelled.
    record : RoundRecord
        What happened.
    measured : Measured
        Test accuracy after it.
    """

    flagged_unknown: int
    record: RoundRecord
    measured: Measured


@dataclass(frozen=True)
class Simulation:
    """All rounds of a scenario, measured.

    Parameters
    ----------
    scenario : Scenario
        Where.
    before : Measured
        Test accuracy before the first round, over all classes that will come.
    steps : tuple of Step
        One per round.
    run : OpenWorldRun
        What is in use at the end.
    oracle : float
        Test accuracy of the same network trained at once on all inputs with their true labels.
    """

    scenario: Scenario
    before: Measured
    steps: tuple[Step, ...]
    run: OpenWorldRun
    oracle: float

    @property
    def state(self) -> LearningState:
        """The state in use at the end."""
        return self.run.state

    @property
    def deployed(self) -> bool:
        """Whether the last round ended in a new deployment."""
        return self.steps[-1].record.deployed


def make_digits_scenario(
    known: int = 6, rounds: int = 1, seed: int = 0, detector: str = DETECTOR, epochs: int = EPOCHS
) -> Scenario:
    """Make a scenario: a small convolutional network knows the first digits, the others come in over some rounds.

    Parameters
    ----------
    known : int, default=6
        How many digits it knows, from 0 on.
    rounds : int, default=1
        How many streams the others are spread over, in order; each also brings inputs of known digits.
    seed : int, default=0
        Seed of the split and the training.
    detector : str, default="maxlogit + knn(5)"
        Text form of the detector.
    epochs : int, default=12
        Epochs of training.

    Returns
    -------
    Scenario
        Ready to simulate.
    """
    from sklearn.datasets import load_digits

    from offmap.models.classify import train_classifier
    from offmap.models.cnn import CNN
    from offmap.models.threads import one_thread

    if not 2 <= known <= 9 or not 1 <= rounds <= 10 - known:
        raise InputError(f"known={known}, rounds={rounds}: 2 to 9 digits are known, and every round brings a new one")
    bunch = load_digits()
    inputs, labels = (bunch.images[:, None] / 16).astype(np.float32), bunch.target.astype(np.int64)
    rng = np.random.default_rng(seed)
    place = np.zeros(len(labels), np.int64)
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(labels == digit))
        shares = KNOWN_SHARES if digit < known else NEW_SHARES
        cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for number, piece in enumerate(np.split(rows, cuts)):
            place[piece] = number
    inputs = (inputs - inputs[place == 0].mean()) / inputs[place == 0].std()
    with one_thread():
        model = CNN(known, width=WIDTH, seed=seed)
        train_classifier(model, inputs[place == 0], labels[place == 0], epochs=epochs, seed=seed)
        network = Network(model)
        features = network.extract(inputs, progress=False).features
    whole = LabeledInputs.of(features, labels, inputs)
    train, calibration, held_out, stream, test = (whole[rng.permutation(np.flatnonzero(place == i))] for i in range(5))
    names = tuple(str(digit) for digit in range(10))
    given = KnownSplits(train, calibration, held_out, names[:known])
    fitted = make_detector(detector).fit(_acts(train, network)).calibrate(_acts(calibration, network))
    turns = np.array_split(np.arange(known, 10), rounds)
    turn = np.zeros(len(stream), np.int64)
    for number, digits in enumerate(turns):
        turn[np.isin(stream.labels, digits)] = number
    old = np.flatnonzero(stream.labels < known)
    turn[old] = np.arange(len(old)) % rounds
    streams = tuple(stream[turn == number] for number in range(rounds))
    return Scenario(start(fitted, given, network), streams, test, names, seed)


def simulate(
    scenario: Scenario,
    n_new: int | Literal["auto", "true"] = "auto",
    on_step: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> Simulation:
    """Run all rounds of a scenario, and measure after each.

    Parameters
    ----------
    scenario : Scenario
        What to simulate.
    n_new : int, "auto" or "true", default="auto"
        How many new classes a round looks for: estimated, a number, or as many as really came in.
    on_step : callable, optional
        Called with a short text when a step begins.
    **options : Any
        Options of `OpenWorldRun.step`.

    Returns
    -------
    Simulation
        All rounds, measured.
    """
    from offmap.models.threads import one_thread

    with one_thread():
        current, steps = begin_run(scenario.state), []
        before = measure(scenario, scenario.state, len(scenario.streams))
        for number, stream in enumerate(scenario.streams, 1):
            on_step(f"round {number}: {len(stream)} inputs come in")
            true = len(np.unique(stream.labels[stream.labels >= scenario.n_known]))
            wanted = true if n_new == "true" else n_new
            unknown = int(((stream.labels >= scenario.n_known) & ~current.state.judge(stream).known).sum())
            if number == len(scenario.streams):
                options["growth"] = 1.0  # nothing comes after it
            current = current.step(stream, wanted, seed=scenario.seed, **options)
            steps.append(Step(unknown, current.rounds[-1], measure(scenario, current.state, number)))
        on_step("training the oracle, which has all labels")
        return Simulation(scenario, before, tuple(steps), current, train_oracle(scenario))


def measure(scenario: Scenario, state: LearningState, rounds: int) -> Measured:
    """Measure test accuracy over the classes met up to a round.

    Parameters
    ----------
    scenario : Scenario
        It has the test inputs.
    state : LearningState
        What is in use.
    rounds : int
        Number of the round.

    Returns
    -------
    Measured
        Shares of test inputs that are right.
    """
    from offmap.metrics.clustering import open_world_accuracy

    met = scenario.met(rounds)
    test = scenario.test
    truth, inside = test.labels, np.isin(test.labels, met)
    found, accepted = state.learned.predict(test), state.judge(test).known
    first = truth < scenario.n_known
    joint = open_world_accuracy(truth[inside], found[inside], range(scenario.n_known))
    return Measured(
        known=float((found == truth)[first].mean()),
        all=joint.all,
        new=joint.novel,
        flagged=float((~accepted)[~inside].mean()) if (~inside).any() else None,
        accepted=float(accepted[inside].mean()),
    )


def train_oracle(scenario: Scenario) -> float:
    """Measure the same kind of network, trained from the start on everything with its true labels.

    Parameters
    ----------
    scenario : Scenario
        It has the streams and the test inputs.

    Returns
    -------
    float
        Test accuracy.
    """
    from offmap.models.classify import train_classifier
    from offmap.models.cnn import CNN

    train = scenario.state.known.train
    for stream in scenario.streams:
        train = train + stream
    assert train.inputs is not None
    n_classes = int(scenario.test.labels.max()) + 1
    model = train_classifier(
        CNN(n_classes, width=WIDTH, seed=scenario.seed), train.inputs, train.labels, epochs=EPOCHS, seed=scenario.seed
    )
    found = Network(model).extract(scenario.test.inputs, progress=False).predictions
    return float((found == scenario.test.labels).mean())


def _acts(part: LabeledInputs, network: Network) -> Activations:
    return Activations(part.features, network.head, None, part.labels)
