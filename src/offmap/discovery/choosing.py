"""Which space and which method suit a pile, settled without labels of novel classes: by hiding some known ones.

How far to trust the known classes' covariance (shrinkage), whether to average rows with their neighbours, and whether
a neighbour graph does better than centres: whatever finds hidden known classes best is taken for the novel ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offmap.discovery.assign import Doubles, Labels, Rows
from offmap.discovery.methods import METHODS, Problem
from offmap.discovery.space import Space
from offmap.metrics.clustering import open_world_accuracy

TRIALS = 2
TRIAL_ROWS = 4000
CLEARLY = 0.05  # better, on hidden classes: less is noise
GRAPH_ROWS = 30_000  # eigenvectors of larger graphs cost more than they are worth by default

Choice = tuple[str, Space]


def default_spaces(width: int) -> list[Space]:
    """The spaces that are tried, plain ones first.

    Examples
    --------
    >>> [str(space) for space in default_spaces(1)][:1]
    ['euclidean']
    """
    plain = [Space("cosine"), Space("euclidean")] if width > 1 else [Space("euclidean")]
    shrunk: list[float | None] = [None, 0.5, 0.2]
    return plain + [
        Space("cosine" if width > 1 else "euclidean", shrinkage, neighbours)
        for neighbours in (0, 10)
        for shrinkage in shrunk
        if shrinkage is not None or neighbours
    ]


def hidden_class_scores(
    features: Any, labels: Labels, choices: Sequence[Choice], seed: int = 0, trials: int = TRIALS
) -> Doubles:
    """How well each choice of method and space finds known classes that were hidden: accuracies, choices × trials.

    In each trial half of the known classes lose their labels, and half of the others' samples too. Groups are
    formed over the labelled samples; the accuracy (v2) counts those that lost their labels.

    Parameters
    ----------
    features, labels
        Rows, and their known class from 0, -1 where unknown; only labelled rows are used, at most 4,000.
    choices
        Names of methods, each with a space.
    seed, trials
        The same seed hides the same classes.
    """
    rng = np.random.default_rng(seed)
    labelled = np.flatnonzero(labels >= 0)
    if len(labelled) > TRIAL_ROWS:
        labelled = np.sort(rng.choice(labelled, TRIAL_ROWS, replace=False))
    rows, truth = np.asarray(features[labelled], np.float32), labels[labelled]
    classes = np.unique(truth)
    scores = np.zeros((len(choices), trials))
    for trial in range(trials):
        shown = np.sort(rng.permutation(classes)[: max(len(classes) // 2, 1)])
        keep = np.isin(truth, shown) & (rng.random(len(truth)) < 0.5)
        shown = np.unique(truth[keep])
        hidden = len(classes) - len(shown)
        if not len(shown) or int((~keep).sum()) < hidden:
            continue
        given = np.where(keep, np.searchsorted(shown, truth), -1)
        for i, (name, space) in enumerate(choices):
            prepared = Rows(space.prepare(rows, given))
            found = METHODS[name](Problem(prepared, len(classes), given, len(shown), seed + trial))
            scores[i, trial] = open_world_accuracy(truth[~keep], found[~keep], shown).all
    return scores


def choose_space(features: Any, labels: Labels, seed: int = 0) -> tuple[Space, list[tuple[Space, float]]]:
    """The space in which semi-supervised k-means finds hidden classes best, and what each space reached.

    With fewer than four known classes nothing can be hidden, and the plain cosine is returned.
    """
    spaces = default_spaces(features.shape[1])
    if len(np.unique(labels[labels >= 0])) < 4:
        return spaces[0], []
    scores = hidden_class_scores(features, labels, [("ss-kmeans", space) for space in spaces], seed).mean(axis=1)
    return spaces[int(np.argmax(scores))], list(zip(spaces, scores.tolist(), strict=True))


def choose(features: Any, labels: Labels, seed: int = 0) -> Choice:
    """The method and the space: the neighbour graph of plain rows, unless hidden classes clearly gain from another.

    Others are k-means in its best space, and the graph in that space. Few classes can be hidden, so what they say is
    noisy: it must be better by 5 points. With more than 30,000 rows, or with known classes too few to hide any, it is
    k-means in its best space.
    """
    space, scored = choose_space(features, labels, seed)
    if not scored or len(features) > GRAPH_ROWS:
        return "ss-kmeans", space
    graphs = [("spectral", one) for one in dict.fromkeys((Space("cosine"), space))]
    scores = [*hidden_class_scores(features, labels, graphs, seed).mean(axis=1), dict(scored)[space]]
    best = int(np.argmax(scores))
    return [*graphs, ("ss-kmeans", space)][best if scores[best] > scores[0] + CLEARLY else 0]
