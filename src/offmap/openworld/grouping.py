"""Group all inputs that a run keeps: beside the labelled classes, with those learned earlier kept apart."""

from __future__ import annotations

from typing import Literal

import numpy as np

from offmap import discovery
from offmap.discovery import Discovery, choose_space
from offmap.openworld.continuing import Pair, keep_apart
from offmap.openworld.decisions import CLASS_FALL, LEVEL, fall_p_value
from offmap.openworld.deployment import UNKNOWN
from offmap.openworld.inputs import LabeledInputs, Space
from offmap.openworld.rounds import METHOD, NothingFoundError, propose
from offmap.openworld.state import LearningState


def choose_row_space(origin: LearningState, kept: LabeledInputs, space: Space, seed: int) -> discovery.Space:
    """Choose once how rows are prepared for grouping; the trials that this takes are not repeated in later rounds."""
    if len(kept) < 2:
        raise NothingFoundError(f"{len(kept)} inputs: at least two are needed to make a group")
    labelled = origin.known.train + origin.known.calibration
    rows = np.concatenate([labelled.rows(space), kept.rows(space)])
    return choose_space(rows, np.concatenate([labelled.labels, np.full(len(kept), UNKNOWN)]), seed)[0]


def group_kept(
    origin: LearningState,
    kept: LabeledInputs,
    n_new: int | Literal["auto"],
    space: Space,
    row_space: discovery.Space,
    seed: int,
    asked: frozenset[Pair] = frozenset(),
) -> tuple[Discovery, frozenset[Pair]]:
    """Group inputs beside the labelled classes; where their number is free, mend what grouping put together wrongly.

    Parameters
    ----------
    origin : LearningState
        The classes that people labelled.
    kept : LabeledInputs
        Unlabelled inputs; their labels are the classes that they are taken for since earlier rounds.
    n_new : int or "auto"
        How many classes to look for beside the labelled ones.
    space, row_space, seed
        As `propose` takes them.
    asked : frozenset of tuple of int
        The pairs of classes that the grouping before put into one group.

    Returns
    -------
    tuple
        What was found, and the pairs of classes that were kept apart.
    """
    apart: frozenset[Pair] = frozenset()
    found = propose(origin, kept, n_new, space=space, method=METHOD, seed=seed, row_space=row_space)
    if n_new == "auto":
        found, apart = _keep_earlier_apart(origin, kept, free_swallowed(origin, kept, found), seed, asked)
    if kept.texts is not None:
        found = found.name_by_texts([""] * int((found.given >= 0).sum()) + kept.texts.tolist())
    return found, apart


def free_swallowed(origin: LearningState, kept: LabeledInputs, found: Discovery) -> Discovery:
    """Part a known class from inputs that grouping put into it but the known classes' own deployment does not.

    A new class that lies close to a known one may be grouped with it. The detector and the classifier of the labelled
    classes then reject most of what was put there: where that is significantly more than a fifth, those inputs become a
    group of their own.
    """
    first = int((found.given >= 0).sum())
    own = found.labels[first:]
    rejected = origin.assign(kept) != own
    labels = found.labels.copy()
    fresh = int(labels.max()) + 1
    for label in range(len(origin.known.class_names)):
        inside = own == label
        lost = int((inside & rejected).sum())
        if fall_p_value(lost, int(inside.sum()), CLASS_FALL) < LEVEL:
            labels[first:][inside & rejected] = fresh
            fresh += 1
    return found if fresh == int(found.labels.max()) + 1 else found.relabel(labels)


def _keep_earlier_apart(
    origin: LearningState, kept: LabeledInputs, found: Discovery, seed: int, asked: frozenset[Pair]
) -> tuple[Discovery, frozenset[Pair]]:
    n_known = len(origin.known.class_names)
    labelled = found.given >= 0
    earlier = np.full(len(found), UNKNOWN)
    earlier[~labelled] = np.where(kept.labels >= n_known, kept.labels, UNKNOWN)
    if found.rows is None or not (earlier >= 0).any():
        return found, frozenset()
    rows = np.asarray(found.rows, np.float32)
    labels, apart = keep_apart(rows, found.labels, earlier, labelled, n_known, seed, asked)
    return found if labels is found.labels else found.relabel(labels), apart
