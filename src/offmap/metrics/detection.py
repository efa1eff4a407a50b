"""How well scores tell known from unknown. Known (ID) inputs are the positives unless a name says otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError

Scores = npt.NDArray[Any]


def fpr_at_tpr(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """The share of OOD inputs accepted when at least `tpr` of the ID inputs are (thesis, section 3.2, eq. 3.3).

    The threshold is the largest one that at least `tpr` of the ID scores reach; OOD scores count when they reach it.
    Many libraries report the other direction, which is `fpr_at_tpr_ood_positive`.

    Examples
    --------
    >>> fpr_at_tpr([1, 2, 3, 4], [0, 1, 2, 5], tpr=0.75)
    0.5
    """
    known, unknown = _pair(id_scores, ood_scores)
    return float(np.mean(unknown >= threshold_at_tpr(known, tpr)))


def threshold_at_tpr(id_scores: Any, tpr: float = 0.95) -> float:
    """The largest threshold that at least `tpr` of the scores reach."""
    if not 0 < tpr <= 1:
        raise InputError(f"tpr={tpr}: a share above 0 and at most 1 is needed")
    known = np.sort(_scores(id_scores, "ID"))[::-1]
    return float(known[max(1, ceil(tpr * len(known) - 1e-9)) - 1])


def fpr_at_tpr_ood_positive(id_scores: Any, ood_scores: Any, tpr: float = 0.95) -> float:
    """The other convention: the share of ID inputs flagged when at least `tpr` of the OOD inputs are.

    Examples
    --------
    >>> fpr_at_tpr_ood_positive([1, 2, 3, 4], [0, 1, 2, 5], tpr=0.75)
    0.5
    """
    known, unknown = _pair(id_scores, ood_scores)
    return fpr_at_tpr(-unknown, -known, tpr)


def auroc(id_scores: Any, ood_scores: Any) -> float:
    """The chance that an ID input scores above an OOD input, ties counted half.

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


def aupr(id_scores: Any, ood_scores: Any, positive: Literal["id", "ood"] = "id") -> float:
    """Average precision with ID or OOD inputs as positives. It depends on the ratio of the two: report that beside it.

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


@dataclass(frozen=True)
class DetectionReport:
    """All numbers of one pair of score sets, as shares."""

    fpr95: float
    auroc: float
    aupr_in: float
    aupr_out: float
    n_id: int
    n_ood: int

    def as_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"FPR95 {self.fpr95:.2%}, AUROC {self.auroc:.2%}, AUPR-in {self.aupr_in:.2%}, AUPR-out {self.aupr_out:.2%} "
            f"({self.n_id} ID : {self.n_ood} OOD)"
        )


def detection_report(id_scores: Any, ood_scores: Any) -> DetectionReport:
    """FPR95, AUROC and both AUPR, with the counts that AUPR depends on.

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
