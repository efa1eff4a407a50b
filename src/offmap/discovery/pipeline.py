"""`discover`: from features and some labels to classes, in one call."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from offmap.discovery.assign import Floats, Labels, Rows, check_rows
from offmap.discovery.choosing import choose, choose_space
from offmap.discovery.counting import ABSENT, ClassCount, count_classes
from offmap.discovery.describe import describe
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
) -> Discovery:
    """Find the classes hidden in a pile: how many there are, which rows belong together, which are known after all.

    Parameters
    ----------
    features
        One row per sample, labelled and unlabelled together: NumPy, torch or a memory map. A memory map is read
        and prepared block by block; k-means holds none of its rows in memory, the other methods hold all.
    labels
        Class numbers with -1 where unknown, or names with `None` where unknown; `None` when nothing is known.
    n_classes
        Known and novel classes together, or ``"auto"`` to estimate it.
    method
        ``"auto"`` is ``"spectral"`` on plain rows, unless hidden known classes are found clearly better in another
        space or by ``"ss-kmeans"``; and that for large or hardly labelled piles. ``"kmeans"`` and ``"gcd"`` are the
        usual baselines on plain rows; ``"gmm"``, ``"vmf"`` and ``"hdbscan"`` group in other ways.
    seed
        The same seed gives the same answer.
    space
        How rows are prepared; chosen by hidden known classes unless given.
    outliers
        Flag rows that belong to no class as -1 instead of forcing them into one. A number is the share of rows
        with a class that may be lost to this; `True` is 0.05.
    stability
        Group so many more times with other seeds; rows that change company lose confidence.
    texts
        One text per row: novel classes are named by their keywords.

    Returns
    -------
    Discovery
        With ``.labels``, ``.n_classes``, ``.n_classes_interval``, ``.is_novel``, ``.confidence``, ``.exemplars``,
        ``.summary()``, ``.to_html(path)``.

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
    name, space = _choose(array, codes, method, space, seed)
    rows = space.prepare(array, codes)
    outside = np.zeros(len(rows), bool)
    if outliers:
        outside = find_outliers(Rows(array, space.metric), codes, LOST if outliers is True else outliers, seed)
    inside = np.flatnonzero(~outside)
    count: ClassCount | None = None
    if n_classes != "auto":
        k = int(n_classes)
    elif not (codes < 0).any():
        k = len(known)
    else:
        count = count_classes(array, np.where(outside, ABSENT, codes), seed)
        k = max(count.n_classes, len(known))
    k = min(k, len(known) + int((codes[inside] < 0).sum()))
    found = np.full(len(rows), -1, np.int64)
    problem = Problem(Rows(picked(rows, inside) if outside.any() else rows), k, codes[inside], len(known), seed)
    found[inside] = _group(problem, name)
    ids = np.concatenate([known.ids, known.next_id + np.arange(max(int(found.max(initial=-1)) + 1 - len(known), 0))])
    final = np.where(found >= 0, _compact(np.append(ids, -1)[found], known), -1)
    given = np.where(codes >= 0, known.ids[codes] if len(known) else -1, -1)
    names = {int(i): name for i, name in zip(known.ids, known.names, strict=True)}
    infos, confidence = describe(rows, final, given, known.ids, names)
    if stability:
        confidence[inside] *= _stability(problem, name, found[inside], stability)
        confidence[given >= 0] = 1
    settings = {"method": name, "space": str(space), "seed": seed}
    result = Discovery(final, given, known.ids, confidence, tuple(infos), count, settings, rows=rows)
    return result if texts is None else result.name_by_texts(texts)


def _choose(array: Any, codes: Labels, name: str, space: Space | None, seed: int) -> tuple[str, Space]:
    """The method and the space, as asked for or as hidden known classes say."""
    nothing_to_find = not (codes < 0).any()
    if space is not None or name in PLAIN or nothing_to_find:
        return "ss-kmeans" if name == "auto" else name, space or Space("cosine")
    if name == "auto":
        return choose(array, codes, seed)
    return name, choose_space(array, codes, seed)[0]


def _group(problem: Problem, name: str) -> Labels:
    if problem.k == problem.n_known and not (problem.codes < 0).any():
        return problem.codes
    if len(problem.rows) == 1:
        return np.zeros(1, np.int64)
    return METHODS[name](problem)


def _compact(labels: Labels, known: KnownClasses) -> Labels:
    """Novel numbers without gaps, in the order they had; known numbers stay."""
    novel = np.unique(labels[labels >= known.next_id])
    return np.where(labels >= known.next_id, known.next_id + np.searchsorted(novel, labels), labels)


def _stability(problem: Problem, name: str, found: Labels, times: int) -> Floats:
    """Per row, the share of other runs that put it into the group matched to its own."""
    from offmap.metrics.clustering import match_clusters

    same = np.zeros(len(found))
    for number in range(1, times + 1):
        again = _group(Problem(problem.rows, problem.k, problem.codes, problem.n_known, problem.seed + number), name)
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
