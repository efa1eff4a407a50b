"""From scores to verdicts with a guarantee: conformal p-values and false discovery control.

Assumption, for every promise here: calibration inputs and future known inputs are exchangeable (drawn alike), and the
calibration inputs were not used for fitting. Then a known input's p-value is at most α with probability at most α
(Vovk, Gammerman & Shafer 2005), whatever the detector and the network are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log

import numpy as np

from offmap import store
from offmap.detection.verdicts import Verdicts
from offmap.errors import InputError, StoreError
from offmap.typing import Array


def p_values(calibration: Array, scores: Array) -> Array:
    """Compute conformal p-values (1 + #{calibration ≤ score}) / (n + 1), for calibration scores sorted upwards.

    Examples
    --------
    >>> p_values(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0]))
    array([0.25, 0.75, 1.  ])
    """
    return (1 + np.searchsorted(calibration, scores, side="right")) / (len(calibration) + 1)


def weighted_p_values(calibration: Array, scores: Array, calibration_weights: Array, weights: Array) -> Array:
    """Compute p-values (w + Σ w_i [calibration_i ≤ score]) / (w + Σ w_i) under a covariate shift.

    With w the density ratio between future known inputs and calibration inputs, a future known input has a p-value of
    at most α with probability at most α (Tibshirani, Barber, Candès & Ramdas 2019). Any common factor of all weights
    cancels out.

    Parameters
    ----------
    calibration : array of shape (n,)
        Scores of calibration inputs, sorted upwards.
    scores : array of shape (m,)
        Scores of new inputs.
    calibration_weights : array of shape (n,)
        The ratio at each calibration input, in the order of `calibration`.
    weights : array of shape (m,)
        The ratio at each new input.

    Examples
    --------
    >>> scores = np.array([1.0, 2.0, 3.0])
    >>> weighted_p_values(scores, np.array([0.0, 2.0]), np.array([1.0, 1.0, 6.0]), np.array([1.0, 2.0]))
    array([0.11111111, 0.4       ])
    """
    below = np.concatenate([[0.0], np.cumsum(calibration_weights)])
    return (weights + below[np.searchsorted(calibration, scores, side="right")]) / (weights + below[-1])


def conditional_p_values(calibration: Array, scores: Array, confidence: float) -> Array:
    """Compute p-values that hold given the calibration set, with some confidence in that set.

    With probability at least `confidence` over calibration sets, all of these hold at once: for every α, of all future
    known inputs at most a share α has a p-value of at most α. Given the set they are independent of each other, as
    procedures on streams require. The bound on the order statistics is the generalised Simes inequality of Bates,
    Candès, Lei, Romano & Sesia (2023), section 3.2.

    Parameters
    ----------
    calibration : array of shape (n,)
        Scores of calibration inputs, sorted upwards.
    scores : array of shape (m,)
        Scores of new inputs.
    confidence : float
        Such as 0.95.

    Returns
    -------
    array of shape (m,)
        Larger than `p_values` by a factor that falls from about 2 log(1 / (1 - confidence)).

    Examples
    --------
    >>> conditional_p_values(np.arange(1000.0), np.array([-1.0, 49.5, 600.0]), 0.95).round(4)
    array([0.006 , 0.0749, 1.    ])
    """
    check_confidence(confidence)
    n = len(calibration)
    half = max(n // 2, 1)
    # log of i(i - 1)…(i - half + 1) / n(n - 1)…(n - half + 1) for i = n, n - 1, …; -inf from i < half on
    steps = np.arange(n - half)
    falls = np.concatenate([[0.0], np.cumsum(np.log1p(-half / (n - steps)))])
    bounds = np.ones(n + 1)
    bounds[: len(falls)] = -np.expm1((np.log1p(-confidence) + falls) / half)
    return bounds[np.searchsorted(calibration, scores, side="right")]


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not between 0 and 1."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence}: a probability between 0 and 1 is needed, such as 0.95")


def order_statistic(n: int, tpr: float, confidence: float | None = None) -> int:
    """Find which smallest calibration score is the threshold; refuse when that is none.

    On average over calibration sets it is the ⌊α(n + 1)⌋-th with α = 1 - tpr; then ``p > α`` and
    ``score ≥ threshold`` say the same. With a confidence, the share of known inputs below the k-th smallest score
    is at most as large as a Beta(k, n + 1 - k) variable, so k is the largest with P(Beta ≤ α) ≥ confidence (Vovk 2012,
    proposition 2).

    Parameters
    ----------
    n : int
        The number of calibration inputs.
    tpr : float
        The share of known inputs to accept.
    confidence : float, optional
        In this calibration set; without it the promise is on average over calibration sets.

    Examples
    --------
    >>> order_statistic(1000, 0.95), order_statistic(1000, 0.95, confidence=0.95)
    (50, 39)
    """
    if not 0 < tpr < 1:
        raise InputError(f"tpr={tpr}: the share of known inputs to accept lies between 0 and 1")
    alpha = 1 - tpr
    if confidence is None:
        place = floor(alpha * (n + 1) + 1e-9)  # 1e-9: 1 - 0.95 is not quite 0.05
        least = ceil(1 / alpha - 1e-9) - 1
        promised = f"tpr={tpr}"
    else:
        check_confidence(confidence)
        from scipy.stats import binom

        # P(Beta(k, n + 1 - k) ≤ α) = P(Binomial(n, α) ≥ k)
        place = int(binom.isf(confidence - 1e-12, n, alpha)) if n else 0
        least = ceil(log(1 - confidence) / log(tpr) - 1e-9)
        promised = f"tpr={tpr} with a confidence of {confidence}"
    if place < 1:
        raise InputError(f"{promised} cannot be promised from {n} calibration inputs; at least {least} are needed")
    return place


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


def effective_size(weights: Array) -> float:
    """Compute (Σ w)² / Σ w²: how many equally weighted inputs carry as much.

    Examples
    --------
    >>> effective_size(np.ones(10)), effective_size(np.array([1.0, 0.0]))
    (10.0, 1.0)
    """
    return float(weights.sum() ** 2 / np.square(weights).sum())


def _check_weights(weights: Array, n: int, confidence: float | None) -> None:
    if confidence is not None:
        raise InputError("confidence and weights: no bound is known for both; leave one of them out")
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InputError(f"weights of shape {weights.shape} for {n} inputs: one number from 0 on for each is needed")


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
