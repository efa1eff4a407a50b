"""One round: propose classes for a pile, learn them beside the old ones, look for forgetting, calibrate, decide."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from offmap.discovery import Discovery, discover
from offmap.errors import InputError
from offmap.openworld.inputs import LabeledInputs, Space
from offmap.openworld.learners import LEARNERS, LearnerInputs, Progress, choose
from offmap.openworld.result import Round, evaluate
from offmap.openworld.state import LearningState, refitted, with_features_of
from offmap.typing import Array

MAX_FORGETTING = 0.03
MIN_SIZE = 20
MOST_LABELLED = 5000  # labelled inputs beside which a pile is grouped; more would not move the groups
METHOD = "spectral"  # what "auto" takes as a rule, without the trials that it costs


class NothingFoundError(InputError):
    """A pile holds no group to learn: nothing is wrong, there is just too little of it yet."""


def _silent(words: str, share: float) -> None:
    """Progress nobody watches."""


def propose(
    state: LearningState,
    pile: LabeledInputs,
    n_new: int | Literal["auto"] = "auto",
    *,
    space: Space = "auto",
    method: str = METHOD,
    seed: int = 0,
    texts: Any = None,
) -> Discovery:
    """Group a pile into proposed classes, beside the known ones.

    Parameters
    ----------
    state
        What is in use.
    pile
        Inputs flagged as unknown; their labels are not looked at.
    n_new
        How many new classes, or ``"auto"``.
    space
        What to group by; see `LabeledInputs.rows`.
    method
        How to group; see `offmap.discover`.
    seed
        The same seed gives the same groups.
    texts
        One text per input of the pile: they name the groups.

    Returns
    -------
    Discovery
        Its first rows are labelled ones (a sample when there are very many), the last ``len(pile)`` are the pile's.
    """
    train = state.known.train
    if not len(pile):
        raise NothingFoundError("the pile is empty; there is nothing to discover")
    if len(pile) < 2:
        raise NothingFoundError("one input on the pile: at least two are needed to make a group")
    train = _some(train, MOST_LABELLED, seed)
    rows = np.concatenate([train.rows(space), pile.rows(space)])
    labels = np.concatenate([train.labels, np.full(len(pile), -1)])
    n_classes: int | Literal["auto"] = n_new if n_new == "auto" else len(state.known.class_names) + n_new
    found = discover(rows, labels, n_classes, method, seed)
    found = found.rename(dict(enumerate(state.known.class_names)))
    if texts is not None:
        found = found.name_by_texts([""] * len(train) + [str(text) for text in texts])
    return found


def pile_labels(found: Discovery, state: LearningState, min_size: int = MIN_SIZE) -> tuple[Array, dict[int, str]]:
    """What a proposal says of the pile: a class number per input, -1 for what is not learned, and new classes' names.

    Inputs that fall to a known class are false alarms: nobody has said that they are of it, so they are left out.
    New numbers follow the known ones without gaps, the largest group first; smaller groups than `min_size` wait.
    """
    own = found.labels[found.given < 0]
    n_old = len(state.known.class_names)
    groups = [info for info in found.classes if info.id >= n_old and int((own == info.id).sum()) >= min_size]
    groups.sort(key=lambda info: (-info.size, info.id))
    labels = np.full(len(own), -1, np.int64)
    names: dict[int, str] = {}
    for place, info in enumerate(groups):
        labels[own == info.id] = n_old + place
        names[n_old + place] = info.name
    return labels, names


def learn_classes(
    state: LearningState,
    pile: LabeledInputs,
    names: Mapping[int, str],
    *,
    learner: str = "auto",
    max_forgetting: float = MAX_FORGETTING,
    seed: int = 0,
    progress: Progress = _silent,
    discovery: Discovery | None = None,
    **settings: Any,
) -> Round:
    """Learn classes that were found on a pile, and decide whether the outcome may be put in service.

    Parameters
    ----------
    state
        What is in use.
    pile
        Its labels say the class of each input: a known number, a number of `names`, or -1 for not sure.
    names
        What new classes are called, by number; the numbers follow the known ones.
    learner
        ``"prototypes"``, ``"finetune"``, ``"opencon"`` or ``"auto"``; see `offmap.openworld.learners`.
    max_forgetting
        By how much accuracy on held-out inputs of the old classes may fall.
    seed
        Of the split of the pile and of learning.
    progress
        Told in words what goes on, and which share of the round is done.
    discovery
        What the classes come from; kept in the result.
    **settings
        Of the learner.
    """
    began = time.perf_counter()
    n_old = len(state.known.class_names)
    _check(pile, names, n_old, max_forgetting)
    chosen = choose(learner, state.network, state.known.train + pile)
    all_names = state.known.class_names + tuple(names[n_old + place] for place in range(len(names)))
    known = state.known.joined(pile, all_names, seed)
    before = evaluate(state, known, n_old)
    progress(f"learning {len(names)} new classes", 0.0)
    learned = LEARNERS.get(chosen)(
        LearnerInputs(
            known.train,
            pile[pile.labels < 0],
            all_names,
            n_old,
            state.network,
            seed,
            lambda words, share: progress(words, 0.9 * share),
            settings,
        )
    )
    network = learned.network or state.network
    if learned.network is not None:
        known = with_features_of(learned.network, known)
    progress("fitting and calibrating a new guard", 0.9)
    calibration = state.guard.calibration
    assert calibration is not None
    guard = refitted(state.guard, learned, known, calibration.tpr, calibration.classes is not None)
    new = LearningState(guard, learned, known, network)
    after = evaluate(new, known, n_old)
    fall = before.known - after.known
    accepted = fall <= max_forgetting + 1e-12
    reason = (
        f"accuracy on known classes went from {before.known:.1%} to {after.known:.1%}; "
        f"a fall of up to {max_forgetting:.1%} is allowed"
    )
    progress("done", 1.0)
    return Round(
        accepted=accepted,
        reason=reason,
        old=state,
        new=new,
        before=before,
        after=after,
        n_old=n_old,
        pile=pile,
        discovery=discovery,
        settings={
            "learner": chosen,
            "max_forgetting": max_forgetting,
            "seed": seed,
            "guard": guard.chosen,
            "seconds": round(time.perf_counter() - began, 2),
            **settings,
        },
    )


def run_round(
    state: LearningState,
    pile: LabeledInputs,
    n_new: int | Literal["auto"] = "auto",
    *,
    space: Space = "auto",
    method: str = METHOD,
    min_size: int = MIN_SIZE,
    seed: int = 0,
    **options: Any,
) -> Round:
    """Discover classes on a pile and learn them, without asking anyone.

    Parameters
    ----------
    state
        What is in use.
    pile
        Inputs flagged as unknown, such as ``state.flagged(stream)``; their labels are not looked at.
    n_new, space, method, seed
        As `propose` takes them.
    min_size
        Groups smaller than this wait for the next round.
    **options
        As `learn_classes` takes them.

    Examples
    --------
    >>> import offmap
    >>> from offmap.openworld import KnownSplits, start
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(600) % 6
    >>> rows = 6 * np.eye(8)[truth] + rng.normal(size=(600, 8))
    >>> known = KnownSplits.split(rows[truth < 4], truth[truth < 4])
    >>> state = start(offmap.detector("knn(5)"), known)
    >>> pile = state.flagged(state.part(rows[truth >= 4]))
    >>> done = run_round(state, pile)
    >>> done.accepted, done.new_names
    (True, ('new 4', 'new 5'))
    """
    found = propose(state, pile, n_new, space=space, method=method, seed=seed)
    labels, names = pile_labels(found, state, min_size)
    if not names:
        raise NothingFoundError(
            f"no group of at least {min_size} inputs on a pile of {len(pile)}; wait for more, or set min_size"
        )
    taken = set(state.known.class_names)
    free = {number: _free(name, taken) for number, name in names.items()}
    return learn_classes(state, replace(pile, labels=labels), free, seed=seed, discovery=found, **options)


def _some(part: LabeledInputs, most: int, seed: int) -> LabeledInputs:
    """At most so many inputs, every class thinned alike."""
    if len(part) <= most:
        return part
    each = max(most // len(np.unique(part.labels)), 2)
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(part.labels == label))[:each] for label in np.unique(part.labels)]
    return part[np.sort(np.concatenate(rows))]


def _free(name: str, taken: set[str]) -> str:
    """The name, or one like it that no class has yet."""
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name} ({number})", number + 1
    taken.add(unique)
    return unique


def _check(pile: LabeledInputs, names: Mapping[int, str], n_old: int, max_forgetting: float) -> None:
    if not 0 <= max_forgetting <= 1:
        raise InputError(f"max_forgetting={max_forgetting}: a share of inputs between 0 and 1")
    if sorted(names) != list(range(n_old, n_old + len(names))):
        raise InputError(f"new classes are numbered {sorted(names)}; they follow the {n_old} known ones without gaps")
    given = set(pile.labels[pile.labels >= 0].tolist())
    if not given:
        raise InputError("no input of the pile has a class; name at least one group")
    if given - set(range(n_old)) - set(names):
        raise InputError(f"the pile has inputs of class {max(given)}, which has no name")
    for number, name in names.items():
        size = int((pile.labels == number).sum())
        if size < 5:
            raise InputError(f"{name!r}: {size} inputs; at least 5 are needed to learn, calibrate and check a class")
