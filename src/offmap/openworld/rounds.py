"""One round: propose classes, learn them beside the old ones, look for forgetting, calibrate, decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from offmap import discovery
from offmap.discovery import Discovery, discover
from offmap.errors import InputError
from offmap.openworld.attempts import RoundTask, evaluate_before, learn_and_judge, leave_out
from offmap.openworld.decisions import LEVEL, describe_decisions, fall_p_value
from offmap.openworld.inputs import LabeledInputs, Space
from offmap.openworld.learners import Progress, choose
from offmap.openworld.result import Round, evaluate
from offmap.openworld.state import LearningState
from offmap.typing import Array

MAX_FORGETTING = 0.02
MIN_SIZE = 10
MOST_LABELLED = 5000  # labelled inputs beside which others are grouped; more would not move the groups
METHOD = "auto"


class NothingFoundError(InputError):
    """There is no group to learn: nothing is wrong, there are just too few inputs yet."""


def _silent(words: str, share: float) -> None:
    """Progress nobody watches."""


def propose(
    state: LearningState,
    candidates: LabeledInputs,
    n_new: int | Literal["auto"] = "auto",
    *,
    space: Space = "auto",
    method: str = METHOD,
    seed: int = 0,
    texts: Any = None,
    row_space: discovery.Space | None = None,
    on_step: Callable[[str, float], None] = lambda words, share: None,
) -> Discovery:
    """Group unlabelled inputs into proposed classes, beside the known ones.

    Parameters
    ----------
    state
        What is in use.
    candidates
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
        One text per candidate: they name the groups.
    row_space
        How rows are prepared for grouping; chosen by trials on hidden known classes when absent.
    on_step
        Called with words and the share that is done, about, when a step begins.

    Returns
    -------
    Discovery
        Its first rows are labelled ones (a sample when there are very many), the candidates follow.
    """
    if not len(candidates):
        raise NothingFoundError("no inputs: there is nothing to discover")
    if len(candidates) < 2:
        raise NothingFoundError("one input: at least two are needed to make a group")
    # held-out inputs stay out of this: they show what a round has done to known classes
    labelled = _some(state.known.train + state.known.calibration, MOST_LABELLED, seed)
    rows = np.concatenate([labelled.rows(space), candidates.rows(space)])
    labels = np.concatenate([labelled.labels, np.full(len(candidates), -1)])
    n_classes: int | Literal["auto"] = n_new if n_new == "auto" else len(state.known.class_names) + n_new
    found = discover(rows, labels, n_classes, method, seed, space=row_space, on_step=on_step)
    found = found.rename(dict(enumerate(state.known.class_names)))
    if texts is not None:
        found = found.name_by_texts([""] * len(labelled) + [str(text) for text in texts])
    return found


def number_groups(found: Discovery, state: LearningState, min_size: int = MIN_SIZE) -> tuple[Array, dict[int, str]]:
    """Number the groups of a proposal: a class number per input, -1 for what is not learned, and new classes' names.

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
    candidates: LabeledInputs,
    names: Mapping[int, str],
    *,
    learner: str = "auto",
    max_forgetting: float = MAX_FORGETTING,
    level: float = LEVEL,
    seed: int = 0,
    progress: Progress = _silent,
    discovery: Discovery | None = None,
    **settings: Any,
) -> Round:
    """Learn classes that were found among unknown inputs, leave out those that harm known ones, and decide.

    Parameters
    ----------
    state : LearningState
        What is in use.
    candidates : LabeledInputs
        Its labels say the class of each input: a known number, a number of `names`, or -1 for not sure.
    names : mapping of int to str
        What new classes are called, by number; the numbers follow the known ones.
    learner : str, default "auto"
        ``"linear"``, ``"kernel"``, ``"prototypes"``, ``"finetune"``, ``"opencon"`` or ``"auto"``; see
        `offmap.openworld.learners`.
    max_forgetting : float, default 0.02
        The share of held-out inputs of the old classes that may be lost.
    level : float, default 0.05
        Of the exact one-sided tests for a greater loss.
    seed : int, default 0
        Of the split of the candidates and of learning.
    progress : callable, optional
        Called with a short text and the share of the work that is done.
    discovery : Discovery, optional
        What the classes come from; kept in the result.
    **settings
        Of the learner.

    Returns
    -------
    Round
        With one decision per group. It is accepted when a class was learned and no fall beyond what is allowed can be
        shown.
    """
    began = time.perf_counter()
    n_old = len(state.known.class_names)
    _check(candidates, names, n_old, max_forgetting, level)
    chosen = choose(learner, state.network, state.known.train + candidates, seed)
    task = RoundTask(state, chosen, max_forgetting, seed, progress, settings)
    attempt, decisions = learn_and_judge(task, candidates, names, level)
    left = [one for one in decisions if one.outcome != "learned"]
    if left and len(left) < len(decisions):
        attempt, decisions = learn_and_judge(task, *leave_out(attempt, decisions), level)
        decisions = [*decisions, *left]
    before, after = evaluate_before(task, attempt), evaluate(attempt.state, attempt.state.known, n_old)
    n = int((attempt.state.known.held_out.labels < n_old).sum())
    p = fall_p_value(round((before.known - after.known) * n), n, max_forgetting)
    learned = [one for one in decisions if one.outcome == "learned"]
    accepted = p >= level and bool(learned)
    progress("done", 1.0)
    return Round(
        accepted=accepted,
        reason=("" if learned else f"no group became a class ({describe_decisions(decisions)}); ")
        + (
            f"accuracy on {n} held-out inputs of known classes went from {before.known:.1%} to {after.known:.1%}; "
            f"a fall of up to {max_forgetting:.1%} is allowed (exact one-sided test of a greater fall: p = {p:.2g}, "
            f"level {level:g})"
        ),
        old=state,
        new=attempt.state,
        before=before,
        after=after,
        n_old=n_old,
        candidates=attempt.candidates,
        groups=tuple(decisions),
        discovery=discovery,
        settings={
            "learner": chosen,
            "max_forgetting": max_forgetting,
            "level": level,
            "seed": seed,
            "detector": attempt.state.detector.chosen,
            "seconds": round(time.perf_counter() - began, 2),
            **settings,
        },
    )


def run_round(
    state: LearningState,
    candidates: LabeledInputs,
    n_new: int | Literal["auto"] = "auto",
    *,
    space: Space = "auto",
    method: str = METHOD,
    min_size: int = MIN_SIZE,
    seed: int = 0,
    **options: Any,
) -> Round:
    """Discover classes among unlabelled inputs and learn them, without asking anyone.

    Parameters
    ----------
    state
        What is in use.
    candidates
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
    >>> candidates = state.flagged(state.part(rows[truth >= 4]))
    >>> done = run_round(state, candidates)
    >>> done.accepted, done.new_names
    (True, ('new 4', 'new 5'))
    """
    found = propose(state, candidates, n_new, space=space, method=method, seed=seed)
    labels, names = number_groups(found, state, min_size)
    if not names:
        raise NothingFoundError(
            f"no group of at least {min_size} inputs among {len(candidates)}; wait for more, or set min_size"
        )
    taken = set(state.known.class_names)
    free = {number: free_name(name, taken) for number, name in names.items()}
    return learn_classes(state, replace(candidates, labels=labels), free, seed=seed, discovery=found, **options)


def _some(part: LabeledInputs, most: int, seed: int) -> LabeledInputs:
    """At most so many inputs, every class thinned alike."""
    if len(part) <= most:
        return part
    each = max(most // len(np.unique(part.labels)), 2)
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(part.labels == label))[:each] for label in np.unique(part.labels)]
    return part[np.sort(np.concatenate(rows))]


def free_name(name: str, taken: set[str]) -> str:
    """Return the name, or one like it that no class has yet, and note that it is taken."""
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name} ({number})", number + 1
    taken.add(unique)
    return unique


def check_tests(max_forgetting: float, level: float) -> None:
    """Raise an error unless these are a share that may be lost and the level of a test."""
    if not 0 < level < 1:
        raise InputError(f"level={level}: the level of a test lies between 0 and 1")
    if not 0 <= max_forgetting <= 1:
        raise InputError(f"max_forgetting={max_forgetting}: a share of inputs between 0 and 1")


def _check(
    candidates: LabeledInputs, names: Mapping[int, str], n_old: int, max_forgetting: float, level: float
) -> None:
    check_tests(max_forgetting, level)
    if sorted(names) != list(range(n_old, n_old + len(names))):
        raise InputError(f"new classes are numbered {sorted(names)}; they follow the {n_old} known ones without gaps")
    given = set(candidates.labels[candidates.labels >= 0].tolist())
    if not given:
        raise InputError("no candidate has a class; name at least one group")
    if given - set(range(n_old)) - set(names):
        raise InputError(f"there are candidates of class {max(given)}, which has no name")
    for number, name in names.items():
        size = int((candidates.labels == number).sum())
        if size < 5:
            raise InputError(f"{name!r}: {size} inputs; at least 5 are needed to learn, calibrate and check a class")
