"""How well groups found in data agree with true classes, whatever the groups are called and however many there are.

Everything here is a function of one table of counts, so evaluating in shards and merging gives the same numbers
as evaluating in one go.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.metrics.contingency import Contingency, Counts, as_contingency

__all__ = [
    "ClassRow",
    "Contingency",
    "OpenWorldAccuracy",
    "adjusted_rand",
    "class_count_error",
    "class_table",
    "match_clusters",
    "normalized_mutual_info",
    "open_world_accuracy",
    "purity",
]

Convention = Literal["orca", "v1", "v2", "v2-balanced", "ncd"]


class OpenWorldAccuracy(NamedTuple):
    """Shares of samples that were right: among all, those of known classes, those of novel classes.

    A part that is empty, or that the convention does not define, is NaN.
    """

    all: float
    known: float
    novel: float


class ClassRow(NamedTuple):
    """One true class in `class_table`: its size, the group matched to it and how well the two agree."""

    label: Hashable
    size: int
    group: Hashable | None
    group_size: int
    recall: float
    precision: float


def open_world_accuracy(
    y_true: Any,
    y_pred: Any = None,
    known_classes: Any = (),
    convention: Convention = "v2",
) -> OpenWorldAccuracy:
    """Measure All, Known and Novel accuracy of a clustering, in a named convention.

    Groups have no names, so they are matched to classes one to one by the assignment that makes most samples
    right (Kuhn 1955). Papers differ in what they match; one prediction can differ by 20 points between them.

    Parameters
    ----------
    y_true : array-like or Contingency
        The true class of each sample, or a `Contingency` that counted them (then `y_pred` is left out).
    y_pred : array-like or None, default=None
        The group of each sample; -1 for an outlier, which is never right.
    known_classes : iterable, default=()
        The classes that had labels; every other class is novel.
    convention : Convention, default="v2"
        ``"v2"``: one matching over all samples, then split (GCD's default). ``"v2-balanced"``: the same, classes
        weighing alike. ``"v1"``: known and novel samples matched separately, All their weighted mean.
        ``"orca"``: All matched jointly, Known plain accuracy without matching, Novel matched by itself.
        ``"ncd"``: Novel alone.

    Returns
    -------
    OpenWorldAccuracy
        ``all``, ``known`` and ``novel``, as shares.

    Examples
    --------
    >>> truth, found = [0, 0, 1, 1, 2, 2], [0, 0, 1, 7, 5, 5]
    >>> accuracy = open_world_accuracy(truth, found, known_classes=[0, 1])
    >>> round(accuracy.all, 3), accuracy.known, accuracy.novel
    (0.833, 0.75, 1.0)
    """
    if convention not in get_args(Convention):
        raise InputError(f"convention={convention!r}: the conventions are {', '.join(get_args(Convention))}")
    table = as_contingency(y_true, y_pred)
    classes = table.classes
    if not classes:
        raise InputError("open_world_accuracy: no sample has a true class (-1 means none); nothing to measure")
    named = {item.item() if isinstance(item, np.generic) else item for item in known_classes}
    known = np.array([label in named for label in classes])
    sizes = table.sizes(classes)
    right = _matched(table.counts, known)
    if convention == "v2-balanced":
        recall = right / np.maximum(sizes, 1)
        return OpenWorldAccuracy(*(_mean(recall[part]) for part in (known | True, known, ~known)))
    if convention == "v2":
        return OpenWorldAccuracy(*(_share(right[part], sizes[part]) for part in (known | True, known, ~known)))
    apart = np.zeros(len(classes), np.int64)
    for part in (known, ~known):
        apart[part] = _matched(table.counts[:, part])
    novel = _share(apart[~known], sizes[~known])
    if convention == "ncd":
        return OpenWorldAccuracy(float("nan"), float("nan"), novel)
    if convention == "v1":
        return OpenWorldAccuracy(_share(apart, sizes), _share(apart[known], sizes[known]), novel)
    row = {group: i for i, group in enumerate(table.groups)}
    counts = table.counts
    plain = np.array([counts[row[label], j] if label in row else 0 for j, label in enumerate(classes)], np.int64)
    return OpenWorldAccuracy(_share(right, sizes), _share(plain[known], sizes[known]), novel)


def accuracy_by_convention(truth: Any, found: Any, labels: Any) -> dict[str, dict[str, float]]:
    """Measure All, Known and Novel over inputs whose label was hidden, in the conventions ``v2`` and ``orca``.

    Parameters
    ----------
    truth : array-like of int
        The true class of each input, -1 for none.
    found : array-like of int
        The class each input was put in.
    labels : array-like of int
        The labels that were shown, -1 where hidden; their classes are the known ones.

    Returns
    -------
    dict of str to dict of str to float
        By convention: ``all``, ``known`` and ``novel``.

    Examples
    --------
    >>> accuracy_by_convention([0, 0, 1, 1], [0, 0, 5, 5], [0, -1, -1, -1])["v2"]
    {'all': 1.0, 'known': 1.0, 'novel': 1.0}
    """
    true, put, shown = (np.asarray(values) for values in (truth, found, labels))
    hidden, known = (shown < 0) & (true >= 0), np.unique(shown[shown >= 0])
    conventions: tuple[Convention, ...] = ("v2", "orca")
    return {name: open_world_accuracy(true[hidden], put[hidden], known, name)._asdict() for name in conventions}


def match_clusters(y_true: Any, y_pred: Any = None) -> dict[Hashable, Hashable]:
    """Match groups to classes one to one, so that most samples are right.

    Parameters
    ----------
    y_true : array-like or Contingency
        The true classes, or counts of them.
    y_pred : array-like or None, default=None
        The groups.

    Returns
    -------
    dict
        The class of each group; spare groups are left out.

    Examples
    --------
    >>> match_clusters(["cat", "cat", "dog"], [7, 7, 3])
    {3: 'dog', 7: 'cat'}
    """
    table = as_contingency(y_true, y_pred)
    classes, groups, counts = table.classes, table.groups, table.counts
    return {groups[i]: classes[j] for i, j in _assignment(counts) if counts[i, j] > 0}


def class_table(y_true: Any, y_pred: Any = None) -> list[ClassRow]:
    """Describe every true class: its size, its group, how much of the class is in it and of it in the class.

    Parameters
    ----------
    y_true : array-like or Contingency
        The true classes, or counts of them.
    y_pred : array-like or None, default=None
        The groups.

    Returns
    -------
    list of ClassRow
        One per class.

    Examples
    --------
    >>> row = class_table(["a", "a", "b"], [0, 1, 1])[0]
    >>> row.label, row.group, row.recall, row.precision
    ('a', 0, 0.5, 1.0)
    """
    table = as_contingency(y_true, y_pred)
    classes, groups, counts = table.classes, table.groups, table.counts
    sizes = table.sizes(classes)
    group_of = {j: i for i, j in _assignment(counts) if counts[i, j] > 0}
    rows = []
    for j, label in enumerate(classes):
        i = group_of.get(j)
        right = 0 if i is None else int(counts[i, j])
        total = 0 if i is None else int(counts[i].sum())
        name = None if i is None else groups[i]
        rows.append(ClassRow(label, int(sizes[j]), name, total, right / int(sizes[j]), right / max(total, 1)))
    return rows


def purity(y_true: Any, y_pred: Any = None) -> float:
    """Measure the share of samples that belong to the largest class of their group; outliers count as wrong.

    Parameters
    ----------
    y_true : array-like or Contingency
        The true classes, or counts of them.
    y_pred : array-like or None, default=None
        The groups.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> purity([0, 0, 1, 1], [5, 5, 5, 6])
    0.75
    """
    table = as_contingency(y_true, y_pred)
    counts = table.counts
    return _share(counts.max(axis=1, initial=0), table.sizes(table.classes))


def normalized_mutual_info(y_true: Any, y_pred: Any = None) -> float:
    """Divide the mutual information by the mean of both entropies; outliers (-1) form one group of their own.

    Parameters
    ----------
    y_true : array-like or Contingency
        The true classes, or counts of them.
    y_pred : array-like or None, default=None
        The groups.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> normalized_mutual_info(["a", "a", "b", "b"], [1, 1, 0, 0])
    1.0
    """
    joint = _with_outliers(as_contingency(y_true, y_pred)).astype(np.float64)
    joint /= max(joint.sum(), 1.0)
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    between = _entropy(rows) + _entropy(columns)
    if between == 0:  # one group, one class: they agree
        return 1.0
    return float(min(max(2 * (between - _entropy(joint.ravel())) / between, 0.0), 1.0))


def adjusted_rand(y_true: Any, y_pred: Any = None) -> float:
    """Compute the adjusted Rand index (Hubert & Arabie 1985); outliers (-1) form one group of their own.

    Parameters
    ----------
    y_true : array-like or Contingency
        The true classes, or counts of them.
    y_pred : array-like or None, default=None
        The groups.

    Returns
    -------
    float
        1 where groups and classes agree on all pairs, 0 on average at chance.

    Examples
    --------
    >>> adjusted_rand(["a", "a", "b", "b"], [1, 1, 0, 0])
    1.0
    """
    counts = _with_outliers(as_contingency(y_true, y_pred)).astype(np.float64)
    total = counts.sum()
    together = _pairs(counts).sum()
    in_groups, in_classes = _pairs(counts.sum(axis=1)).sum(), _pairs(counts.sum(axis=0)).sum()
    chance = in_groups * in_classes / max(total * (total - 1) / 2, 1.0)
    span = (in_groups + in_classes) / 2 - chance
    return 1.0 if span == 0 else float((together - chance) / span)


def class_count_error(found: int, true: int) -> float:
    """Compute the relative error of a number of classes, ``|K − K*| / K*``.

    Parameters
    ----------
    found : int
        K.
    true : int
        K*.

    Returns
    -------
    float
        0 when it is right.

    Examples
    --------
    >>> class_count_error(81, 77) < 0.06
    True
    """
    if true < 1:
        raise InputError(f"class_count_error(true={true}): there is at least one class")
    return abs(found - true) / true


def _assignment(counts: Counts) -> list[tuple[int, int]]:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(counts, maximize=True)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def _matched(counts: Counts, favoured: npt.NDArray[np.bool_] | None = None) -> Counts:
    """Per class, how many of its samples are in the group matched to it.

    Of matchings that are equally right, the one with most samples of the favoured classes is taken: what is
    reported for known and novel classes then does not hang on how groups are numbered.
    """
    right = np.zeros(counts.shape[1], np.int64)
    worth = counts if favoured is None else counts * (counts.sum() + 1) + counts * favoured
    for i, j in _assignment(worth):
        right[j] = counts[i, j]
    return right


def _with_outliers(table: Contingency) -> Counts:
    counts = table.counts
    left = table.sizes(table.classes) - counts.sum(axis=0)
    return np.vstack([counts, left]) if left.any() else counts


def _share(right: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> float:
    total = sizes.sum()
    return float(right.sum() / total) if total else float("nan")


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _entropy(shares: npt.NDArray[np.float64]) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum()) + 0.0


def _pairs(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return counts * (counts - 1) / 2
