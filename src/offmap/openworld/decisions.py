"""Decide about each proposed group: exact tests for harm to known classes, and which groups are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offmap.typing import Array

LEVEL = 0.05
CLASS_FALL = 0.2  # of one known class; it has few held-out inputs, so less would be noise
MIN_RECALL = 0.5
MOST_LOST = 5  # per cent of the inputs of new classes for each per cent of known ones that is won back
COMMON_SHARES = (1.0, 0.5)  # of a common offset, by which every new class is lowered at least: the first that is cheap
BEYOND = 1e-3  # another logit: by how much one is lowered, so that rounding does not undo it
MOST_FOR_ONE = 10  # inputs of new classes for one of a known class: of few known ones, one is no share to go by

Labels = npt.NDArray[np.int64]
Outcome = Literal["learned", "merged", "waiting", "left out"]


@dataclass(frozen=True)
class GroupDecision:
    """The outcome of one proposed group, and its reason.

    Parameters
    ----------
    name : str
        What the group is called.
    size : int
        How many inputs it has.
    outcome : {"learned", "merged", "waiting", "left out"}
        A class of its own; part of another class; too small or too vague as yet; harmful to a known class.
    reason : str
        One sentence.
    label : int or None
        The class number it became or was merged into.
    lost, held_out, p_value : int and float, default=0 and 0 and 1.0
        How many held-out inputs of the known class that it harms most it takes away, of how many, and the exact
        one-sided p-value of "takes away no more than allowed".
    """

    name: str
    size: int
    outcome: Outcome
    reason: str
    label: int | None = None
    lost: int = 0
    held_out: int = 0
    p_value: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def relabel(self, label: int | None) -> GroupDecision:
        """Return the same decision with another class number."""
        return replace(self, label=label)


def fall_p_value(lost: int, n: int, allowed: float) -> float:
    """Return the exact one-sided p-value of "at most the share `allowed` of n inputs is lost".

    The chance of losing `lost` or more of n when each is lost with probability `allowed` (binomial). A small value
    says that more is lost than allowed; with few inputs even a large fall may be chance, and the value says so.

    Parameters
    ----------
    lost : int
        Inputs that were right before and are not after, less those that became right.
    n : int
        How many inputs were looked at.
    allowed : float
        The share that may be lost.

    Examples
    --------
    >>> round(fall_p_value(5, 162, 0.03), 2)
    0.54
    >>> fall_p_value(20, 162, 0.03) < 0.001
    True
    """
    from scipy.stats import binom

    if lost <= 0 or n == 0:
        return 1.0
    return float(binom.sf(lost - 1, n, allowed))


def harmful_groups(
    logits: Array,
    truth: Labels,
    right_before: npt.NDArray[np.bool_],
    n_old: int,
    max_fall: float,
    level: float = LEVEL,
) -> dict[int, tuple[int, int, float]]:
    """Find the new classes that take too many held-out inputs from known classes.

    A new class is harmful when it takes from one known class significantly more than a fifth of its held-out inputs.
    Beyond that, while accuracy over all known classes falls significantly by more than `max_fall`, the new class that
    takes the most is left out.

    Parameters
    ----------
    logits : array
        Held-out inputs of known classes × all classes, new ones last.
    truth : array of int
        Their classes.
    right_before : array of bool
        Which of them were right before.
    n_old : int
        The number of known classes.
    max_fall : float
        The share of all held-out inputs that may be lost.
    level : float, default 0.05
        Of each test.

    Returns
    -------
    dict
        Per harmful class: inputs lost, held-out inputs looked at, p-value.
    """
    found: dict[int, tuple[int, int, float]] = {}
    left = np.array(logits, np.float64)
    sizes = np.bincount(truth, minlength=n_old)
    predicted = left.argmax(axis=1)
    for label in range(n_old, logits.shape[1]):
        taken = right_before & (predicted == label)
        losses = np.bincount(truth[taken], minlength=n_old)
        worst = int(losses.argmax())
        p = fall_p_value(int(losses[worst]), int(sizes[worst]), max(CLASS_FALL, max_fall))
        if p < level:
            found[label] = int(losses[worst]), int(sizes[worst]), p
    left[:, list(found)] = -np.inf
    while True:
        predicted = left.argmax(axis=1)
        net = int(right_before.sum() - (predicted == truth).sum())
        p = fall_p_value(net, len(truth), max_fall)
        taken_by = np.bincount(predicted[right_before & (predicted >= n_old)], minlength=logits.shape[1])
        if p >= level or not taken_by[n_old:].any():
            return found
        worst = int(taken_by.argmax())
        found[worst] = int(taken_by[worst]), len(truth), p
        left[:, worst] = -np.inf


def offsets_without_harm(
    logits: Array,
    truth: Labels,
    right_before: npt.NDArray[np.bool_],
    n_old: int,
    max_fall: float,
    level: float = LEVEL,
) -> Array:
    """Return by how much the logit of each new class is lowered until none is harmful.

    A class that is lowered gives held-out inputs back, the least certain first, as few as the tests ask for; leaving it
    out would give back all of them, and all of its own. Parameters as in `harmful_groups`.

    Examples
    --------
    >>> logits = np.array([[0.0, 3], [0, 2], [0, 1], [5, 0]])  # three of four are taken; two may be chance
    >>> offsets_without_harm(logits, np.zeros(4, int), np.ones(4, bool), 1, 0.1).round(1)
    array([1.])
    """
    left = np.array(logits, np.float64)
    while True:
        harmful = harmful_groups(left, truth, right_before, n_old, max_fall, level)
        if not harmful:
            return np.asarray(logits[0, n_old:] - left[0, n_old:])
        predicted = left.argmax(axis=1)
        for label in harmful:
            taken = left[right_before & (predicted == label)]
            if len(taken):  # else it would take what another one gives back
                others = np.delete(taken, label, axis=1).max(axis=1)
                left[:, label] -= (taken[:, label] - others).min() + BEYOND


def class_offsets(logits: Array, truth: Labels, n_old: int, least: float, new_logits: Array | None = None) -> Array:
    """Return by how much the logit of each new class is lowered so that enough known inputs stay right.

    New classes are learned from groups, which hold some inputs of known classes; a head trained on both prefers new
    classes too often. Calibration inputs of known classes correct that (calibrated stacking, Chao et al. 2016, with an
    offset per class): each new class is lowered as far as the inputs that it takes demand, and by what one common
    offset would be, or by half of that where the whole costs too much: few calibration inputs do not show everything
    that a class would take.

    Parameters
    ----------
    logits : array
        Calibration inputs of known classes × all classes, new ones last.
    truth : array of int
        Their classes.
    n_old : int
        The number of known classes.
    least : float
        The accuracy to reach, as far as lowering new classes can.
    new_logits : array or None, default None
        Calibration inputs of new classes × all classes. With them a new class is not lowered further once that costs
        more than 5 % of them for each per cent of known inputs that is won back, or ten of them for each: among few
        known inputs one may ask for much.

    Examples
    --------
    >>> class_offsets(np.array([[2.0, 0, 3, 0], [0, 2, 1, 0], [5, 0, 1, 0]]), np.array([0, 1, 0]), 2, 1.0)
    array([1., 1.])
    """
    old, new = logits[:, :n_old].max(axis=1), np.asarray(logits[:, n_old:], np.float64)
    if not new.size:
        return np.zeros(new.shape[1])
    gap = new.max(axis=1) - old
    right = logits[:, :n_old].argmax(axis=1) == truth
    needed = int(np.ceil(least * len(truth) - 1e-9)) - int((right & (gap <= 0)).sum())
    taken = np.flatnonzero(right & (gap > 0))
    taken = taken[np.argsort(gap[taken], kind="stable")][: max(needed, 0)]
    price = np.inf if new_logits is None else min(MOST_LOST * len(new_logits) / len(truth), MOST_FOR_ONE)
    for won in range(len(taken), 0, -1):
        for share in COMMON_SHARES:
            offsets = _lower(new[taken[:won]], old[taken[:won]], share * gap[taken[won - 1]])
            if new_logits is None or _lost(new_logits, n_old, offsets) <= price * won:
                return offsets
    return np.zeros(new.shape[1])


def _lower(new: Array, old: Array, least: float) -> Array:
    """Return the offsets under which none of these inputs goes to a new class, none smaller than the least."""
    offsets = np.zeros(new.shape[1])
    while True:  # an input that one class gives back may go to the next
        left = new - offsets
        still = left.max(axis=1) > old + 1e-12
        if not still.any():
            return np.maximum(offsets, least)
        rows, classes = np.flatnonzero(still), left[still].argmax(axis=1)
        np.maximum.at(offsets, classes, new[rows, classes] - old[rows])


def _lost(logits: Array, n_old: int, offsets: Array) -> int:
    """Return how many inputs of new classes go to known ones because new classes are lowered."""
    old, new = logits[:, :n_old].max(axis=1), logits[:, n_old:]
    return int(((new.max(axis=1) > old) & ((new - offsets).max(axis=1) <= old)).sum())


def match_groups(groups: Labels, earlier: Labels) -> dict[int, int]:
    """Find which earlier class each group continues: pairs with the most inputs in common, one to one.

    Parameters
    ----------
    groups : array of int
        The group of each input, -1 for none.
    earlier : array of int
        The class that each input had before, -1 for none.

    Examples
    --------
    >>> match_groups(np.array([0, 0, 1, 1, 2]), np.array([7, 7, 7, 8, -1]))
    {0: 7, 1: 8}
    """
    from scipy.optimize import linear_sum_assignment

    both = (groups >= 0) & (earlier >= 0)
    if not both.any():
        return {}
    rows, row = np.unique(groups[both], return_inverse=True)
    columns, column = np.unique(earlier[both], return_inverse=True)
    counts = np.zeros((len(rows), len(columns)), np.int64)
    np.add.at(counts, (row, column), 1)
    pairs = zip(*linear_sum_assignment(counts, maximize=True), strict=True)
    return {int(rows[i]): int(columns[j]) for i, j in pairs if counts[i, j]}


def describe_decisions(decisions: Iterable[GroupDecision], outcomes: Sequence[Outcome] = ()) -> str:
    """Say in a few words how many groups had which outcome."""
    found = [one.outcome for one in decisions]
    kinds: Sequence[Outcome] = outcomes or ("learned", "merged", "waiting", "left out")
    return ", ".join(f"{found.count(kind)} {kind}" for kind in kinds if kind in found) or "no group"
