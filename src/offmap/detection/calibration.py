"""From scores to verdicts with a guarantee: conformal p-values and false discovery control.

Assumption, for every promise here: calibration inputs and future known inputs are exchangeable (drawn alike), and the
calibration inputs were not used for fitting. Then a known input's p-value is at most α with probability at most α
(Vovk, Gammerman & Shafer 2005), whatever the detector and the network are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from offmap.errors import InputError
from offmap.typing import Array


def p_values(calibration: Array, scores: Array) -> Array:
    """Compute conformal p-values (1 + #{calibration ≤ score}) / (n + 1), for calibration scores sorted upwards.

    Examples
    --------
    >>> p_values(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0]))
    array([0.25, 0.75, 1.  ])
    """
    return (1 + np.searchsorted(calibration, scores, side="right")) / (len(calibration) + 1)


def order_statistic(n: int, tpr: float) -> int:
    """Find which smallest calibration score is the threshold: ⌊α(n + 1)⌋ with α = 1 - tpr; refuse when that is none.

    Then ``p > α`` and ``score ≥ threshold`` say the same.
    """
    if not 0 < tpr < 1:
        raise InputError(f"tpr={tpr}: the share of known inputs to accept lies between 0 and 1")
    alpha = 1 - tpr
    place = floor(alpha * (n + 1) + 1e-9)  # 1e-9: 1 - 0.95 is not quite 0.05
    if place < 1:
        raise InputError(
            f"tpr={tpr} cannot be promised from {n} calibration inputs; "
            f"at least {ceil(1 / alpha - 1e-9) - 1} are needed"
        )
    return place


class Verdict(NamedTuple):
    """The verdict on one input."""

    score: float
    p_value: float
    known: bool
    predicted: int | None


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on a batch: arrays with one entry per input. Iterating gives one `Verdict` each."""

    score: Array
    p_value: Array
    known: Array
    predicted: Array | None = None

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[Verdict]:
        for row in range(len(self)):
            predicted = None if self.predicted is None else int(self.predicted[row])
            yield Verdict(float(self.score[row]), float(self.p_value[row]), bool(self.known[row]), predicted)

    def __repr__(self) -> str:
        return f"Verdicts({len(self)} inputs, {int(np.sum(~self.known))} unknown)"


@dataclass(frozen=True)
class Calibration:
    """Scores of held-out known inputs, sorted, and the share to accept.

    Parameters
    ----------
    scores : array of shape (n,)
        Sorted upwards; within each class when there are classes.
    tpr : float
        The share of known inputs to accept.
    classes : array of shape (n,), optional
        The predicted class of each score, where the promise is kept per class.
    """

    scores: Array
    tpr: float
    classes: Array | None = None

    @classmethod
    def of(cls, scores: Array, tpr: float, classes: Array | None = None, n_classes: int | None = None) -> Calibration:
        """Calibrate on scores, after checking that they can carry the promise.

        Examples
        --------
        >>> Calibration.of(np.arange(100.0), tpr=0.95).threshold
        4.0
        """
        if len(scores) == 0:
            raise InputError("no calibration inputs; give held-out known inputs")
        if classes is None:
            order_statistic(len(scores), tpr)
            return cls(np.sort(scores), tpr)
        counts = np.bincount(classes, minlength=n_classes or 0)
        for label, count in enumerate(counts):
            try:
                order_statistic(int(count), tpr)
            except InputError as error:
                raise InputError(f"by_class: class {label}: {error}") from error
        order = np.lexsort((scores, classes))
        return cls(scores[order], tpr, classes[order])

    def arrays(self) -> dict[str, Array]:
        """Give what must be saved beside `tpr`."""
        return {"scores": self.scores} | ({} if self.classes is None else {"classes": self.classes})

    @property
    def threshold(self) -> float:
        """The score from which an input is known, where one holds for all classes."""
        if self.classes is not None:
            raise InputError("calibrated by class: each class has its own threshold, see thresholds()")
        return float(self.scores[order_statistic(len(self.scores), self.tpr) - 1])

    def thresholds(self) -> dict[int, float]:
        """Give the threshold of each class."""
        if self.classes is None:
            raise InputError("calibrated for all classes at once: see threshold")
        groups = {int(label): self.scores[self.classes == label] for label in np.unique(self.classes)}
        return {label: float(group[order_statistic(len(group), self.tpr) - 1]) for label, group in groups.items()}

    def p_values(self, scores: Array, classes: Array | None = None) -> Array:
        """Compute the p-value of each score, among calibration scores of its class where calibrated by class."""
        if self.classes is None:
            return p_values(self.scores, scores)
        if classes is None:
            raise InputError("calibrated by class: the inputs' predicted classes are needed; pass logits or a head")
        values = np.ones(len(scores))
        for label in np.unique(classes):
            chosen = classes == label
            values[chosen] = p_values(self.scores[self.classes == label], scores[chosen])
        return values

    def verdicts(self, scores: Array, classes: Array | None = None, fdr: float | None = None) -> Verdicts:
        """Judge: known where the p-value exceeds ``1 - tpr``; with `fdr`, where Benjamini-Hochberg does not flag it."""
        values = self.p_values(scores, classes)
        alpha = 1 - self.tpr + 1e-12  # a p-value of exactly α is not above it, though 1 - 0.95 is rounded
        known = values > alpha if fdr is None else ~discoveries(values, fdr)
        return Verdicts(scores, values, known, classes)


def discoveries(values: Array, fdr: float) -> Array:
    """Say which p-values are discoveries at this false discovery rate (Benjamini & Hochberg 1995).

    Conformal p-values that share a calibration set are positively dependent, for which the procedure keeps its promise
    (Bates et al. 2023).

    Examples
    --------
    >>> discoveries(np.array([0.01, 0.02, 0.5, 0.9]), fdr=0.1)
    array([ True,  True, False, False])
    """
    if not 0 < fdr < 1:
        raise InputError(f"fdr={fdr}: a rate between 0 and 1 is needed")
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(values, method="bh") <= fdr)
