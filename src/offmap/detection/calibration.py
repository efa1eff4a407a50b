"""From scores to verdicts with a guarantee: the scores of held-out known inputs, and the share of them to accept.

What is promised, and on which assumption, stands in `offmap.detection.p_values`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offmap import store
from offmap.detection.p_values import (
    check_confidence,
    conditional_p_values,
    discoveries,
    effective_size,
    order_statistic,
    p_values,
    weighted_p_values,
)
from offmap.detection.verdicts import Verdicts
from offmap.errors import InputError, StoreError
from offmap.typing import Array


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
    confidence : float, optional
        With which the promise holds for this set of scores; without it, it holds on average over such sets.
    weights : array of shape (n,), optional
        How many future inputs each score stands for, up to a common factor.
    arrived : array of shape (n,), optional
        When each score came, for `extend`; all at once when absent.
    """

    scores: Array
    tpr: float
    classes: Array | None = None
    confidence: float | None = None
    weights: Array | None = None
    arrived: Array | None = None

    def __repr__(self) -> str:
        within = "" if self.classes is None else ", within every class"
        return f"Calibration({len(self.scores)} held-out inputs, tpr={self.tpr:g}{within})"

    @classmethod
    def of(
        cls,
        scores: Array,
        tpr: float,
        classes: Array | None = None,
        n_classes: int | None = None,
        confidence: float | None = None,
        weights: Array | None = None,
        arrived: Array | None = None,
    ) -> Calibration:
        """Calibrate on scores, after checking that they can carry the promise.

        Examples
        --------
        >>> Calibration.of(np.arange(100.0), tpr=0.95).threshold
        4.0
        >>> Calibration.of(np.arange(100.0), tpr=0.95, confidence=0.95).threshold
        1.0
        """
        if len(scores) == 0:
            raise InputError("no calibration inputs; give held-out known inputs")
        if weights is not None:
            _check_weights(weights, len(scores), confidence)
        order = np.argsort(scores, kind="stable") if classes is None else np.lexsort((scores, classes))
        beside = [None if array is None else array[order] for array in (classes, weights, arrived)]
        made = cls(scores[order], tpr, beside[0], confidence, *beside[1:])
        if classes is None:
            made._place(slice(None))
            return made
        for label in range(max(n_classes or 0, int(classes.max()) + 1)):
            try:
                made._place(made._rows(label))
            except InputError as error:
                raise InputError(f"by_class: class {label}: {error}") from error
        return made

    def check(self) -> Calibration:
        """Return itself after checking that its parts, read from a file, belong together."""
        arrays = self.arrays()
        kinds = {"scores": ("f", 1), "classes": ("iu", 1), "weights": ("f", 1), "arrived": ("iu", 1)}
        store.check_arrays("calibration", arrays, {name: kinds[name] for name in arrays}, tuple(arrays))
        keys = (self.scores,) if self.classes is None else (self.scores, self.classes)
        in_order = np.array_equal(np.lexsort(keys), np.arange(len(self.scores)))
        if not 0 < self.tpr < 1 or np.isnan(self.scores).any() or not in_order:
            raise StoreError("not a whole calibration of this version of offmap (its scores are not in order)")
        if self.confidence is not None:
            check_confidence(self.confidence)
        if self.weights is not None:
            _check_weights(self.weights, len(self.scores), self.confidence)
        return self

    def arrays(self) -> dict[str, Array]:
        """Give what must be saved beside `tpr` and `confidence`."""
        found = {"scores": self.scores, "classes": self.classes, "weights": self.weights, "arrived": self.arrived}
        return {name: array for name, array in found.items() if array is not None}

    def _rows(self, label: int) -> slice:
        """The rows of a class, which lie together."""
        assert self.classes is not None
        first, last = np.searchsorted(self.classes, [label, label + 1])
        return slice(int(first), int(last))

    def _place(self, rows: slice) -> int:
        """Find the order statistic that is the threshold, among the scores in these rows."""
        n = len(self.scores[rows])
        if self.weights is None:
            return order_statistic(n, self.tpr, self.confidence)
        effective = int(effective_size(self.weights[rows])) if n else 0
        try:
            return order_statistic(effective, self.tpr)
        except InputError as error:
            raise InputError(f"{error}; {n} weighted inputs count as {effective}, the shift is too large") from error

    @property
    def threshold(self) -> float:
        """The score from which an input is known, where one holds for all classes."""
        if self.classes is not None:
            raise InputError("calibrated by class: each class has its own threshold, see thresholds()")
        self._check_unweighted()
        return float(self.scores[self._place(slice(None)) - 1])

    def thresholds(self) -> dict[int, float]:
        """Give the threshold of each class."""
        if self.classes is None:
            raise InputError("calibrated for all classes at once: see threshold")
        self._check_unweighted()
        rows = {int(label): self._rows(int(label)) for label in np.unique(self.classes)}
        return {label: float(self.scores[place][self._place(place) - 1]) for label, place in rows.items()}

    def _check_unweighted(self) -> None:
        if self.weights is not None:
            raise InputError("calibrated with weights: each input has its own threshold; see verdicts")

    def levels(self, classes: Array | None = None) -> Array | float:
        """Give what a p-value must exceed to be known: 1 - tpr or, with a confidence, what carries it; per class."""
        alpha = 1 - self.tpr + 1e-12  # a p-value of exactly α is not above it, though 1 - 0.95 is rounded
        if self.confidence is None:
            return alpha
        if self.classes is None:
            return self._level(slice(None))
        assert classes is not None
        found = {int(label): self._level(self._rows(int(label))) for label in np.unique(classes)}
        return np.array([found[int(label)] for label in classes])

    def _level(self, rows: slice) -> float:
        n = len(self.scores[rows])
        return self._place(rows) / (n + 1) + 1e-12 if n else 0.0

    def p_values(self, scores: Array, classes: Array | None = None, weights: Array | None = None) -> Array:
        """Compute the p-value of each score, among calibration scores of its class where calibrated by class.

        Parameters
        ----------
        scores : array of shape (m,)
            Of new inputs.
        classes : array of shape (m,), optional
            Their predicted classes, where calibrated by class.
        weights : array of shape (m,), optional
            Their weights, where calibrated with weights; the largest of calibration when absent, which is cautious.
        """
        if self.classes is None:
            return self._p_values(slice(None), scores, weights)
        if classes is None:
            raise InputError("calibrated by class: the inputs' predicted classes are needed; pass logits or a head")
        values = np.ones(len(scores))
        for label in np.unique(classes):
            chosen = classes == label
            values[chosen] = self._p_values(
                self._rows(int(label)), scores[chosen], None if weights is None else weights[chosen]
            )
        return values

    def _p_values(self, rows: slice, scores: Array, weights: Array | None) -> Array:
        if self.weights is None:
            return p_values(self.scores[rows], scores)
        given = np.full(len(scores), self.weights.max()) if weights is None else weights
        return weighted_p_values(self.scores[rows], scores, self.weights[rows], given)

    def verdicts(
        self, scores: Array, classes: Array | None = None, fdr: float | None = None, weights: Array | None = None
    ) -> Verdicts:
        """Judge: known where the p-value exceeds ``1 - tpr``; with `fdr`, where Benjamini-Hochberg does not flag it."""
        values = self.p_values(scores, classes, weights)
        if fdr is None:
            return Verdicts(scores, values, values > self.levels(classes), classes)
        if self.weights is not None:
            raise InputError(f"fdr={fdr}: not promised for a calibration with weights; leave fdr out")
        return Verdicts(scores, values, ~discoveries(values, fdr), classes)

    def conditional_p_values(self, scores: Array, confidence: float, classes: Array | None = None) -> Array:
        """Compute p-values that hold given this calibration set; see `conditional_p_values`."""
        self._check_unweighted()
        if self.classes is None:
            return conditional_p_values(self.scores, scores, confidence)
        assert classes is not None
        values = np.ones(len(scores))
        for label in np.unique(classes):
            chosen = classes == label
            values[chosen] = conditional_p_values(self.scores[self._rows(int(label))], scores[chosen], confidence)
        return values

    def extend(
        self, scores: Array, window: int, classes: Array | None = None, weights: Array | None = None, seed: int = 0
    ) -> Calibration:
        """Take in scores of newer known inputs and drop the oldest beyond a window.

        Parameters
        ----------
        scores : array of shape (m,)
            Of inputs confirmed as known, in the order of arrival.
        window : int
            The number of scores to keep; of each class where calibrated by class.
        classes : array of shape (m,), optional
            Their predicted classes, where calibrated by class.
        weights : array of shape (m,), optional
            How many inputs each stands for; 1 when absent.
        seed : int, default=0
            Of the choice among scores that came at the same time.

        Returns
        -------
        Calibration
            On the newest scores.

        Examples
        --------
        >>> Calibration.of(np.arange(100.0), 0.9).extend(np.arange(50.0), window=100).threshold
        6.0
        """
        if window < 1:
            raise InputError(f"window={window}: at least one score is kept")
        if (classes is None) != (self.classes is None):
            raise InputError("calibrated by class: the classes of the new inputs are needed, and only then")
        old, new = len(self.scores), len(scores)
        when = np.zeros(old, np.int64) if self.arrived is None else self.arrived
        arrived = np.concatenate([when, (when.max() if old else 0) + 1 + np.arange(new)])
        random = np.random.default_rng(seed).permutation(old + new)
        latest = np.lexsort((random, -arrived))  # what came together is dropped at random, never by its score
        labels = None if classes is None or self.classes is None else np.concatenate([self.classes, classes])
        kept = latest[:window] if labels is None else np.concatenate(
            [latest[labels[latest] == label][:window] for label in np.unique(labels)]
        )  # fmt: skip
        joined = None
        if weights is not None or self.weights is not None:
            parts = ((self.weights, old), (weights, new))
            joined = np.concatenate([np.ones(n) if given is None else given for given, n in parts])[kept]
        return Calibration.of(
            np.concatenate([self.scores, scores])[kept], self.tpr, None if labels is None else labels[kept],
            confidence=self.confidence, weights=joined, arrived=arrived[kept],
        )  # fmt: skip


def _check_weights(weights: Array, n: int, confidence: float | None) -> None:
    if confidence is not None:
        raise InputError("confidence and weights: no bound is known for both; leave one of them out")
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InputError(f"weights of shape {weights.shape} for {n} inputs: one number from 0 on for each is needed")
