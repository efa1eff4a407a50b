"""A world to try the loop in: a network that knows some digits meets all ten, and what it does is measured.

The true classes of the stream are never shown to the loop; they and the test inputs are for measuring alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from offmap.activations import Activations
from offmap.detection import detector
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.result import Round
from offmap.openworld.rounds import NothingFoundError, run_round
from offmap.openworld.state import LearningState, start
from offmap.typing import Array

GUARD = "knn(10)"
EPOCHS = 12
WIDTH = 24
# shares of a known digit: to train, to calibrate, held out, in the stream, to test; of a new one: stream and test
KNOWN_SHARES = (0.45, 0.10, 0.15, 0.10, 0.20)
NEW_SHARES = (0.0, 0.0, 0.0, 0.80, 0.20)


@dataclass(frozen=True)
class Scenario:
    """A network with its guard, the streams it will meet, and test inputs.

    Parameters
    ----------
    state
        What is in use at first.
    streams
        Per round the inputs that come in; their labels are the truth, for measuring.
    test
        Inputs of all classes for measuring.
    class_names
        Of all true classes, the known ones first.
    seed
        Of everything random.
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
        """The true classes that were there or came in up to a round."""
        seen = [np.arange(self.n_known), *(stream.labels for stream in self.streams[:rounds])]
        return np.unique(np.concatenate(seen))


@dataclass(frozen=True)
class Measured:
    """Shares of test inputs that are right after a round, by their true class.

    Parameters
    ----------
    known
        Of the classes known at first, by their own numbers.
    all, new
        Of all classes met so far and of the new ones, groups matched to classes one to one.
    flagged
        Of inputs of classes not learned yet, the share that the guard flags; `None` when none are left.
    accepted
        Of all classes met so far, the share that the guard calls known.
    """

    known: float
    all: float
    new: float
    flagged: float | None
    accepted: float


@dataclass(frozen=True)
class Step:
    """One round in a world: what came in, what became of it, and how well it went."""

    arrived: int
    flagged: int
    flagged_unknown: int
    round: Round | None
    why: str
    measured: Measured


@dataclass(frozen=True)
class Simulation:
    """All rounds in a world.

    Parameters
    ----------
    world
        Where.
    before
        Test accuracy before the first round, over all classes that will come.
    steps
        One per round.
    oracle
        Test accuracy of the same network trained at once on all inputs with their true labels.
    """

    world: Scenario
    before: Measured
    steps: tuple[Step, ...]
    oracle: float

    @property
    def state(self) -> LearningState:
        """What is in use at the end."""
        for step in reversed(self.steps):
            if step.round is not None:
                return step.round.state
        return self.world.state


def digits_world(known: int = 6, rounds: int = 1, seed: int = 0, guard: str = GUARD, epochs: int = EPOCHS) -> Scenario:
    """A small convolutional network that was taught the first digits; the others come in over so many rounds.

    Parameters
    ----------
    known
        How many digits it knows, from 0 on.
    rounds
        How many streams the others are spread over, in order; each also brings inputs of known digits.
    seed
        Of the split and the training.
    guard
        The detector that flags.
    epochs
        Of training.
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
    fitted = detector(guard).fit(_acts(train, network)).calibrate(_acts(calibration, network))
    turns = np.array_split(np.arange(known, 10), rounds)
    turn = np.zeros(len(stream), np.int64)
    for number, digits in enumerate(turns):
        turn[np.isin(stream.labels, digits)] = number
    old = np.flatnonzero(stream.labels < known)
    turn[old] = np.arange(len(old)) % rounds
    streams = tuple(stream[turn == number] for number in range(rounds))
    return Scenario(start(fitted, given, network), streams, test, names, seed)


def simulate(
    world: Scenario,
    n_new: int | Literal["auto", "true"] = "auto",
    on_step: Callable[[str], None] = lambda words: None,
    **options: Any,
) -> Simulation:
    """Go through all rounds of a world, and measure after each.

    Parameters
    ----------
    world
        Where.
    n_new
        How many new classes a round looks for: estimated, a number, or ``"true"``, as many as really came in.
    on_step
        Told in words what begins.
    **options
        As `offmap.openworld.run_round` takes them.
    """
    from offmap.models.threads import one_thread

    with one_thread():
        state, waiting, steps = world.state, world.state.known.train[:0], []
        before = measure(world, state, len(world.streams))
        for number, stream in enumerate(world.streams, 1):
            on_step(f"round {number}: {len(stream)} inputs come in")
            arrived = waiting + _read(state, stream)
            pile = state.flagged(arrived)
            wanted = n_new
            if n_new == "true":
                wanted = len(np.unique(stream.labels[stream.labels >= world.n_known]))
            unknown = int((pile.labels >= world.n_known).sum())
            on_step(f"round {number}: {len(pile)} of {len(arrived)} are flagged; discovering and learning")
            done, why = _try(state, pile, wanted, {"seed": world.seed, **options})
            if done is not None:
                state = done.state
                waiting = _read(state, pile[done.pile.labels < 0] if done.accepted else pile)
            else:
                waiting = pile
            steps.append(Step(len(stream), len(pile), unknown, done, why, measure(world, state, number)))
        on_step("training the oracle, which has all labels")
        return Simulation(world, before, tuple(steps), oracle(world))


def measure(world: Scenario, state: LearningState, rounds: int) -> Measured:
    """Test accuracy over the classes met up to a round."""
    from offmap.metrics.clustering import open_world_accuracy

    met = world.met(rounds)
    test = _read(state, world.test)
    truth, inside = test.labels, np.isin(test.labels, met)
    found, accepted = state.learned.predict(test), state.judge(test).known
    first = truth < world.n_known
    joint = open_world_accuracy(truth[inside], found[inside], range(world.n_known))
    return Measured(
        known=float((found == truth)[first].mean()),
        all=joint.all,
        new=joint.novel,
        flagged=float((~accepted)[~inside].mean()) if (~inside).any() else None,
        accepted=float(accepted[inside].mean()),
    )


def oracle(world: Scenario) -> float:
    """Test accuracy of the same kind of network, trained from the start on everything with its true labels."""
    from offmap.models.classify import train_classifier
    from offmap.models.cnn import CNN

    train = world.state.known.train
    for stream in world.streams:
        train = train + stream
    assert train.inputs is not None
    n_classes = int(world.test.labels.max()) + 1
    model = train_classifier(
        CNN(n_classes, width=WIDTH, seed=world.seed), train.inputs, train.labels, epochs=EPOCHS, seed=world.seed
    )
    found = Network(model).extract(world.test.inputs, progress=False).predictions
    return float((found == world.test.labels).mean())


def _try(state: LearningState, pile: LabeledInputs, n_new: Any, options: dict[str, Any]) -> tuple[Round | None, str]:
    """A round, or why there was none: a pile without groups is not an error in a stream."""
    hidden = LabeledInputs(pile.features, np.full(len(pile), -1), pile.inputs)
    try:
        done = run_round(state, hidden, n_new, **options)
    except NothingFoundError as error:
        return None, str(error)
    return done, done.reason


def _read(state: LearningState, part: LabeledInputs) -> LabeledInputs:
    """The same inputs with the features of the network in use."""
    if state.network is None or not len(part):
        return part
    return state.part(inputs=part.inputs, labels=part.labels)


def _acts(part: LabeledInputs, network: Network) -> Activations:
    return Activations(part.features, network.head, None, part.labels)
