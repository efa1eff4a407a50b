"""`discover`: find classes from features and some labels in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from offmap.discovery.assign import Floats, Labels, Rows, check_rows
from offmap.discovery.choosing import choose_space
from offmap.discovery.counting import ClassCount, count_groups
from offmap.discovery.describe import describe
from offmap.discovery.graph_groups import group_by_graph
from offmap.discovery.inputs import KnownClasses, read_labels
from offmap.discovery.methods import METHODS, Problem
from offmap.discovery.outliers import LOST, find_outliers
from offmap.discovery.result import Discovery
from offmap.discovery.space import Space, picked
from offmap.errors import InputError

PLAIN = ("kmeans", "gcd")  # what others are compared with: no whitening, no smoothing


def discover(
    features: Any,
    labels: Any = None,
    n_classes: int | Literal["auto"] = "auto",
    method: str = "auto",
    seed: int = 0,
    *,
    space: Space | None = None,
    outliers: bool | float = False,
    stability: int = 0,
    texts: Any = None,
    on_step: Callable[[str, float], None] = lambda words, share: None,
) -> Discovery:
    """Find the classes among rows of which some, or none, have labels.

    Parameters
    ----------
    features : array of shape (n_rows, n_columns)
        One row per sample, labelled and unlabelled together: NumPy, torch or a memory map. A memory map is read
        and prepared block by block.
    labels : array of shape (n_rows,), optional
        Class numbers with -1 where unknown, or names with `None` where unknown.
    n_classes : int or "auto", default "auto"
        Known and novel classes together, or ``"auto"`` to estimate it.
    method : str, default "auto"
        ``"auto"`` is ``"graph"``: the most likely of joins over the neighbour graph and k-means on its eigenvectors.
        ``"kmeans"`` and ``"gcd"`` are the usual baselines on plain rows; ``"ss-kmeans"``, ``"spectral"``, ``"gmm"``,
        ``"vmf"`` and ``"hdbscan"`` group in other ways.
    seed : int, default 0
        The same seed gives the same answer.
    space : Space, optional
        How rows are prepared. By default the cosine; columns on very different scales are standardized first, and rows
        are whitened when that helps known classes that are hidden for the purpose. ``.settings`` says what was done.
    outliers : bool or float, default False
        Flag rows that belong to no class as -1 instead of forcing them into one. A number is the share of rows
        with a class that may be lost to this; `True` is 0.05.
    stability : int, default 0
        Group so many more times with other seeds; rows that change groups lose confidence.
    texts : sequence of str, optional
        One text per row: novel classes are named by their keywords.
    on_step : callable, optional
        Called with words and the share that is done, about, when a step begins.

    Returns
    -------
    Discovery
        With ``.labels``, ``.n_classes``, ``.n_classes_interval``, ``.is_novel``, ``.confidence``, ``.is_core``,
        ``.classes``, ``.exemplars``, ``.summary()``, ``.to_html(path)``.

    Raises
    ------
    InputError
        If features, labels or settings cannot be used; the message names the value and the rule.

    See Also
    --------
    offmap.discovery.count_classes : only the number of classes.
    offmap.learn : train a network with the classes found.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(6), 40)
    >>> rows = rng.normal(size=(6, 8))[truth] + 0.05 * rng.normal(size=(240, 8))
    >>> found = discover(rows, np.where(truth < 3, truth, -1))
    >>> found.n_classes, int(found.is_novel.sum())
    (6, 120)
    """
    array = check_rows(features)
    known = read_labels(labels, len(array))
    _check(n_classes, method, len(array), known, stability, outliers)
    if texts is not None and len(texts) != len(array):
        raise InputError(f"discover: {len(texts)} texts for {len(array)} rows; give one per row")
    codes = known.codes
    name = "graph" if method == "auto" else method
    on_step(f"preparing {len(array)} rows", 0.0)
    if space is None:
        space = Space("cosine") if name in PLAIN else choose_space(array, codes, seed)[0]
    rows = space.prepare(array, codes)
    outside = np.zeros(len(rows), bool)
    if outliers:
        outside = find_outliers(Rows(array, space.metric), codes, LOST if outliers is True else outliers, seed)
    inside = np.flatnonzero(~outside)
    view = Rows(picked(rows, inside) if outside.any() else rows)
    on_step(f"looking for groups in {len(inside)} rows", 0.3)
    found, shares, count, k = _form_groups(view, codes[inside], len(known), n_classes, name, seed)
    labels_found = _number(found, known, inside, len(rows))
    given = np.where(codes >= 0, known.ids[codes] if len(known) else -1, -1)
    names = {int(i): one for i, one in zip(known.ids, known.names, strict=True)}
    confidence = None
    if shares is not None:
        confidence = np.zeros(len(rows), np.float32)
        confidence[inside] = shares
    on_step(f"describing {len(np.unique(found))} groups", 0.85)
    infos, confidence = describe(rows, labels_found, given, known.ids, names, confidence)
    if stability:
        problem = Problem(view, k, codes[inside], len(known), seed)
        confidence[inside] *= _stability(problem, name, found, stability)
        confidence[given >= 0] = 1
    settings = {"method": name, "space": str(space), "seed": seed}
    result = Discovery(labels_found, given, known.ids, confidence, tuple(infos), count, settings, rows=rows)
    return result if texts is None else result.name_by_texts(texts)


def _form_groups(
    rows: Rows, codes: Labels, n_known: int, n_classes: int | Literal["auto"], name: str, seed: int
) -> tuple[Labels, Floats | None, ClassCount | None, int]:
    """Return groups, how sure each row is, how the classes were counted and their number, where there are any."""
    free = int((codes < 0).sum())
    if not free and n_classes == "auto":
        return codes, None, None, n_known
    if len(rows) == 1:
        return np.zeros(1, np.int64), None, ClassCount(1, (1, 1)) if n_classes == "auto" else None, 1
    k = None if n_classes == "auto" else min(int(n_classes), n_known + free)
    if name == "graph":
        made = group_by_graph(rows, codes, n_known, k, seed)
        count = None if k else ClassCount(made.n_groups, made.interval, made.steps)
        return made.labels, made.confidence, count, made.n_groups
    count = None
    if k is None:
        count = count_groups(rows, codes, n_known, seed)
        k = count.n_classes
    return METHODS.get(name)(Problem(rows, k, codes, n_known, seed)), None, count, k


def _number(found: Labels, known: KnownClasses, inside: Labels, n: int) -> Labels:
    """Class numbers of all rows: known classes keep theirs, novel ones follow without gaps, -1 is an outlier."""
    novel = np.unique(found[found >= len(known)])
    numbers = np.concatenate([known.ids, known.next_id + np.arange(len(novel)), [-1]])
    place = np.where(found >= len(known), len(known) + np.searchsorted(novel, found), found)
    labels = np.full(n, -1, np.int64)
    labels[inside] = numbers[place]
    return labels


def _stability(problem: Problem, name: str, found: Labels, times: int) -> Floats:
    """Per row, the share of other runs that put it into the group matched to its own."""
    from offmap.metrics.clustering import match_clusters

    same = np.zeros(len(found))
    for number in range(1, times + 1):
        again = METHODS.get(name)(replace(problem, seed=problem.seed + number))
        partner = match_clusters(found, again)
        same += np.array([partner.get(int(group)) for group in again], object) == found
    return np.asarray(same / times, np.float32)


def _check(n_classes: Any, name: str, n: int, known: KnownClasses, stability: int, outliers: Any) -> None:
    if name != "auto":
        METHODS.get(name, also=("auto",))
    if stability < 0:
        raise InputError(f"stability={stability}: the number of further runs is 0 or more")
    if not isinstance(outliers, bool) and not 0 < outliers < 1:
        raise InputError(f"outliers={outliers}: True, False, or the share of rows with a class that may be lost")
    if n_classes == "auto":
        return
    if isinstance(n_classes, bool) or not isinstance(n_classes, int | np.integer):
        raise InputError(f"n_classes={n_classes!r}: a whole number or 'auto'")
    free = int((known.codes < 0).sum())
    if n_classes < max(len(known), 1):
        raise InputError(
            f"n_classes={n_classes}: the labels already name {len(known)} classes; give at least that many"
        )
    if n_classes > len(known) + free:
        raise InputError(
            f"n_classes={n_classes}: {n} rows, {free} of them unlabelled, can hold at most {len(known) + free} classes"
        )
