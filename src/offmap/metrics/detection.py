"""How well scores tell known from unknown inputs. Known (ID) inputs are the positives unless a name says otherwise.

Metrics are registered in `METRICS`; reports, `offmap.compare`, its page and the benchmark suites measure all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.registry import Registry

Scores = npt.NDArray[Any]
Compute = Callable[[Any, Any], float]
C = TypeVar("C", bound=Callable[..., float])


@dataclass(frozen=True)
class DetectionMetric:
    """A number that says how well scores tell known from unknown inputs, as a share.

    Parameters
    ----------
    compute : callable
        From the scores of known and of unknown inputs to the number.
    title : str
        What tables call it, such as ``"FPR95"``.
    best : {"max", "min"}
        Whether more or less of it is better.
    """

    compute: Compute
    title: str
    best: Literal["max", "min"] = "max"


METRICS: Registry[DetectionMetric] = Registry("metric", package="offmap.metrics", group="offmap.metrics")
STANDARD = ("fpr95", "auroc", "aupr_in", "aupr_out")


def register_metric(name: str, title: str, best: Literal["max", "min"] = "max") -> Callable[[C], C]:
    """Register a function as a metric of detection; a decorator, also for your own code.

    Parameters
    ----------
    name : str
        Its name in tables, files and `Comparison.plot`.
    title : str
        What pages call it.
    best : {"max", "min"}, default "max"
        Whether more or less of it is better.

    Returns
    -------
    callable
        The decorator.

    Examples
    --------
    >>> @register_metric("overlap", "overlap", best="min")
    ... def overlap(id_scores, ood_scores):
    ...     "Share of unknown inputs that score above the lowest known one."
    ...     return float((np.asarray(ood_scores) >= np.min(id_scores)).mean())
    >>> detection_report([3, 2], [0, 2]).as_dict()["overlap"]
    0.5
    >>> METRICS.remove("overlap")
    """

    def add(compute: C) -> C:
        METRICS.add(name, DetectionMetric(compute, title, best))
        return compute

    return add


def metric_names() -> tuple[str, ...]:
    """Return the names of all metrics: the four usual ones, then others in alphabetical order.

    Examples
    --------
    >>> metric_names()[:4]
    ('fpr95', 'auroc', 'aupr_in', 'aupr_out')
    """
    return (*STANDARD, *(name for name in METRICS if name not in STANDARD))


@register_metric("fpr95", "FPR95", best="min")
def fpr_at_tpr(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """Compute the share of OOD inputs accepted when at least `tpr` of ID inputs are (thesis, chapter 3, eq. 3.3).

    The threshold is the largest one that at least `tpr` of the ID scores reach; OOD scores count when they reach it.
    Many libraries report the other direction, which is `fpr_at_tpr_ood_positive`.

    Parameters
    ----------
    id_scores, ood_scores : array-like
        Scores of known and of unknown inputs, higher means known.
    tpr : float, default=0.95
        The share of ID inputs to accept.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> fpr_at_tpr([1, 2, 3, 4], [0, 1, 2, 5], tpr=0.75)
    0.5
    """
    known, unknown = _pair(id_scores, ood_scores)
    return float(np.mean(unknown >= threshold_at_tpr(known, tpr)))


def threshold_at_tpr(id_scores: Any, tpr: float = 0.95) -> float:
    """Find the largest threshold that at least `tpr` of the scores reach.

    Parameters
    ----------
    id_scores : array-like
        Scores of known inputs.
    tpr : float, default=0.95
        The share to accept.

    Returns
    -------
    float
        The threshold.
    """
    if not 0 < tpr <= 1:
        raise InputError(f"tpr={tpr}: a share above 0 and at most 1 is needed")
    known = np.sort(_scores(id_scores, "ID"))[::-1]
    return float(known[max(1, ceil(tpr * len(known) - 1e-9)) - 1])


def fpr_at_tpr_ood_positive(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """Compute the share of ID inputs flagged when at least `tpr` of OOD inputs are: the other convention.

    Parameters
    ----------
    id_scores, ood_scores : array-like
        Scores of known and of unknown inputs, higher means known.
    tpr : float, default=0.95
        The share of OOD inputs to flag.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> fpr_at_tpr_ood_positive([1, 2, 3, 4], [0, 1, 2, 5], tpr=0.75)
    0.5
    """
    known, unknown = _pair(id_scores, ood_scores)
    return fpr_at_tpr(-unknown, -known, tpr)


@register_metric("auroc", "AUROC")
def auroc(id_scores: Any, ood_scores: Any) -> float:
    """Compute the probability that an ID input scores above an OOD input, ties counted half.

    Parameters
    ----------
    id_scores, ood_scores : array-like
        Scores of known and of unknown inputs, higher means known.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> auroc([1, 2], [0, 1])
    0.875
    """
    known, unknown = _pair(id_scores, ood_scores)
    ordered = np.sort(unknown)
    below = np.searchsorted(ordered, known, side="left")
    not_above = np.searchsorted(ordered, known, side="right")
    return float((below.mean() + not_above.mean()) / 2 / len(unknown))


@register_metric("aupr_in", "AUPR-in")
def aupr(id_scores: Any, ood_scores: Any, positive: Literal["id", "ood"] = "id") -> float:
    """Compute the average precision with ID or OOD inputs as positives.

    It depends on the ratio of the two: report that beside it.

    Parameters
    ----------
    id_scores, ood_scores : array-like
        Scores of known and of unknown inputs, higher means known.
    positive : {"id", "ood"}, default="id"
        Which inputs are to be found.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> aupr([3, 2], [0, 1]), aupr([3, 2], [0, 1], positive="ood")
    (1.0, 1.0)
    """
    from sklearn.metrics import average_precision_score

    known, unknown = _pair(id_scores, ood_scores)
    if positive not in ("id", "ood"):
        raise InputError(f"aupr(positive={positive!r}): the positives are 'id' or 'ood'")
    scores = np.concatenate([known, unknown])
    # Only the order matters; ranks stand in for scores of -inf, which scikit-learn refuses.
    ranks = np.unique(scores, return_inverse=True)[1]
    is_id = np.arange(len(scores)) < len(known)
    truth, sign = (is_id, 1) if positive == "id" else (~is_id, -1)
    return float(average_precision_score(truth, sign * ranks))


@register_metric("aupr_out", "AUPR-out")
def _aupr_out(id_scores: Any, ood_scores: Any) -> float:
    """Average precision with OOD inputs as positives."""
    return aupr(id_scores, ood_scores, positive="ood")


@dataclass(frozen=True)
class DetectionReport:
    """All metrics of one pair of score sets, as shares; `more` holds those beside the four usual ones."""

    fpr95: float
    auroc: float
    aupr_in: float
    aupr_out: float
    n_id: int
    n_ood: int
    more: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, float]:
        """Return all numbers by name."""
        values = asdict(self)
        more = values.pop("more")
        return {**values, **more}

    def __str__(self) -> str:
        return (
            f"FPR95 {self.fpr95:.2%}, AUROC {self.auroc:.2%}, AUPR-in {self.aupr_in:.2%}, AUPR-out {self.aupr_out:.2%} "
            f"({self.n_id} ID : {self.n_ood} OOD)"
        )


def detection_report(id_scores: Any, ood_scores: Any) -> DetectionReport:
    """Compute FPR95, AUROC and both AUPR, with the counts that AUPR depends on.

    Parameters
    ----------
    id_scores, ood_scores : array-like
        Scores of known and of unknown inputs, higher means known.

    Returns
    -------
    DetectionReport
        The metrics as shares.

    Examples
    --------
    >>> print(detection_report([3, 2], [0, 1]))
    FPR95 0.00%, AUROC 100.00%, AUPR-in 100.00%, AUPR-out 100.00% (2 ID : 2 OOD)
    """
    known, unknown = _pair(id_scores, ood_scores)
    return DetectionReport(
        fpr_at_tpr(known, unknown),
        auroc(known, unknown),
        aupr(known, unknown),
        aupr(known, unknown, positive="ood"),
        len(known),
        len(unknown),
        {name: METRICS.get(name).compute(known, unknown) for name in metric_names()[len(STANDARD) :]},
    )


def _pair(id_scores: Any, ood_scores: Any) -> tuple[Scores, Scores]:
    return _scores(id_scores, "ID"), _scores(ood_scores, "OOD")


def _scores(values: Any, name: str) -> Scores:
    scores = np.asarray(values, dtype=np.float64).reshape(-1)
    if len(scores) == 0:
        raise InputError(f"no {name} scores; at least one is needed")
    if np.isnan(scores).any():
        raise InputError(f"the {name} scores hold NaN")
    return scores
