"""Say which classes or features drift: one test per class and feature, with a common bound on false alarms.

Each test is the conformal test martingale of `offmap.detection.drift`, in bins: of a feature's values, of the scores of
one predicted class, and of whether an input is predicted as that class. By Ville's inequality the capital of one test
ever reaches m/α with probability at most α/m while nothing has changed, so among m tests there is ever a false alarm
with probability at most α.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offmap import store
from offmap.detection.drift import MAX_CAPITAL, STAKES, compute_bets
from offmap.errors import InputError, StoreError
from offmap.typing import Array

BINS = 8
MOST = 20_000  # calibration inputs that are counted; more would hardly move the bins
_MEMORY = 0.98  # with which the mean rank forgets, for the direction of a drift
_SHARE, _SCORE, _FEATURE = "share", "score", "feature"


@dataclass(frozen=True)
class DriftReference:
    """Counts of calibration inputs in bins, against which new inputs are ranked.

    Parameters
    ----------
    class_counts : array of shape (n_classes,)
        How many calibration inputs were predicted as each class.
    score_edges, score_counts : arrays of shape (n_classes, BINS - 1) and (n_classes, BINS)
        Bins of the scores of each predicted class.
    feature_edges, feature_counts : arrays of shape (width, BINS - 1) and (width, BINS)
        Bins of each feature.
    """

    class_counts: Array
    score_edges: Array
    score_counts: Array
    feature_edges: Array
    feature_counts: Array

    @classmethod
    def of(
        cls, scores: Array, predicted: Array | None, features: Array | None, n_classes: int | None, seed: int = 0
    ) -> DriftReference:
        """Count calibration inputs; a quarter of them, drawn at random, gives the edges of the bins and is not counted.

        Parameters
        ----------
        scores : array of shape (n,)
            Of calibration inputs.
        predicted : array of shape (n,) or None
            Their predicted classes.
        features : array of shape (n, width) or None
            Their features.
        n_classes : int or None
            How many classes there are.
        seed : int, default=0
            Of the draw.

        Returns
        -------
        DriftReference
            Without classes or features where they were not given.
        """
        order = np.random.default_rng(seed).permutation(len(scores))[:MOST]
        n = len(order)
        edging, counted = order[: n // 4 + 1], order[n // 4 + 1 :]
        classes = 0 if predicted is None else (n_classes or int(predicted.max()) + 1)
        edges, counts = np.zeros((classes, BINS - 1)), np.zeros((classes, BINS), np.int64)
        for label in range(classes):
            assert predicted is not None
            own = scores[edging[predicted[edging] == label]]
            own = own[np.isfinite(own)]
            edges[label] = _edges(own[:, None])[0] if len(own) else np.inf
            rest = scores[counted[predicted[counted] == label]]
            counts[label] = np.bincount(np.searchsorted(edges[label], rest, side="right"), minlength=BINS)
        share = np.zeros(0, np.int64) if predicted is None else np.bincount(predicted[counted], minlength=classes)
        width = 0 if features is None else features.shape[1]
        feature_edges, feature_counts = np.zeros((width, BINS - 1)), np.zeros((width, BINS), np.int64)
        if features is not None:
            feature_edges = _edges(np.asarray(features[np.sort(edging)], np.float64))
            for rows in np.array_split(np.sort(counted), len(counted) // 1024 + 1):
                bins = _find_bins(feature_edges, np.asarray(features[rows], np.float64))
                for number in range(BINS):
                    feature_counts[:, number] += (bins == number).sum(axis=0)
        return cls(share, edges, counts, feature_edges, feature_counts)

    def arrays(self) -> dict[str, Array]:
        """Give everything, by name."""
        return {name: getattr(self, name) for name in _KINDS}

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> DriftReference:
        """Make the reference that gave these arrays."""
        store.check_arrays("reference", arrays, _KINDS, ("class_counts", "score_edges", "score_counts"))
        store.check_arrays("reference", arrays, {}, ("feature_edges", "feature_counts"))
        found = cls(**{name: arrays[name] for name in _KINDS})
        wide = (found.score_edges, found.feature_edges), (found.score_counts, found.feature_counts)
        counts = (found.class_counts, found.score_counts, found.feature_counts)
        if any(array.shape[1] != size for size, group in zip((BINS - 1, BINS), wide, strict=True) for array in group):
            raise StoreError("not a whole reference of this version of offmap (it has other bins)")
        if any((array < 0).any() for array in counts):
            raise StoreError("not a whole reference of this version of offmap (it has negative counts)")
        return found


_KINDS = {
    "class_counts": ("iu", 1),
    "score_edges": ("f", 2),
    "score_counts": ("iu", 2),
    "feature_edges": ("f", 2),
    "feature_counts": ("iu", 2),
}


@dataclass(frozen=True)
class Drifting:
    """A class or feature whose test has raised an alarm.

    Parameters
    ----------
    what : {"share", "score", "feature"}
        Whether the share of a class among predictions, the scores of a class, or a feature drifts.
    index : int
        The class or the feature.
    direction : {"higher", "lower"}
        Where it has moved lately.
    alarm_at : int
        The number of inputs seen when the alarm was raised.
    evidence : float
        The logarithm to the base 10 of the test's capital.
    """

    what: str
    index: int
    direction: str
    alarm_at: int
    evidence: float


class ColumnDrift:
    """Test every class and feature of a stream for drift.

    Parameters
    ----------
    reference : DriftReference
        Of the calibration inputs.
    alpha : float, default=0.01
        The probability that any alarm is ever raised while nothing has changed.
    seed : int, default=0
        Of the random numbers that break ties.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known = rng.normal(size=(2000, 5))
    >>> drift = ColumnDrift(DriftReference.of(known[:, 0], None, known, None))
    >>> drift.update(rng.normal(size=500), None, rng.normal(size=(500, 5)))
    []
    >>> rows = rng.normal(size=(500, 5)) + [0, 0, 1, 0, 0]
    >>> [(found.what, found.index, found.direction) for found in drift.update(rows[:, 0], None, rows)]
    [('feature', 2, 'higher')]
    """

    def __init__(self, reference: DriftReference, alpha: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError(f"alpha={alpha}: a probability between 0 and 1 is needed")
        self.alpha, self.reference, self.seen = alpha, reference, 0
        total = int(reference.class_counts.sum())
        self._classes, self._width = len(reference.class_counts), len(reference.feature_counts)
        self._counts = np.zeros((2 * self._classes + self._width, BINS))
        self._counts[: self._classes, 0] = total - reference.class_counts  # bin 0: another class
        self._counts[: self._classes, 1] = reference.class_counts
        self._counts[self._classes : 2 * self._classes] = reference.score_counts
        self._counts[2 * self._classes :] = reference.feature_counts
        m = len(self._counts)
        self._capital = np.zeros((m, 2 * len(STAKES)))
        self._total, self._steps, self._mean = np.ones(m), np.zeros(m), np.full(m, 0.5)
        self._alarm_at = np.zeros(m, np.int64)
        self._rng = np.random.default_rng(seed)

    def update(self, scores: Array, predicted: Array | None, features: Array | None) -> list[Drifting]:
        """Test inputs in the order of arrival.

        Parameters
        ----------
        scores : array of shape (n,)
            Of new inputs.
        predicted : array of shape (n,) or None
            Their predicted classes; without them classes are not tested.
        features : array of shape (n, width) or None
            Their features; without them features are not tested.

        Returns
        -------
        list of Drifting
            All alarms so far; see `alarms`.
        """
        columns = np.zeros((len(scores), 0), np.int64)
        if features is not None and self._width:
            columns = _find_bins(self.reference.feature_edges, np.asarray(features, np.float64))
        for row, score in enumerate(np.asarray(scores, np.float64)):
            self.seen += 1
            places, bins = [], []
            if predicted is not None and self._classes:
                label = int(predicted[row])
                shares = np.zeros(self._classes, np.int64)
                if label < self._classes:
                    shares[label] = 1
                    places.append(np.array([self._classes + label]))
                    bins.append(np.searchsorted(self.reference.score_edges[label], [score], side="right"))
                places.append(np.arange(self._classes))
                bins.append(shares)
            if columns.shape[1]:
                places.append(np.arange(2 * self._classes, len(self._counts)))
                bins.append(columns[row])
            if places:
                self._bet(np.concatenate(places), np.concatenate(bins))
        return self.alarms()

    def _bet(self, places: Array, bins: Array) -> None:
        """Rank one value of each of these columns among the earlier ones, and bet that it is not uniform."""
        counts = self._counts[places]
        cumulated = np.cumsum(counts, axis=1)
        here = np.arange(len(places))
        below = cumulated[here, bins] - counts[here, bins]
        ranks = (below + self._rng.random(len(places)) * (counts[here, bins] + 1)) / (cumulated[:, -1] + 1)
        self._counts[places, bins] += 1
        self._mean[places] = _MEMORY * self._mean[places] + (1 - _MEMORY) * ranks
        self._steps[places] += 1
        steps = self._steps[places]
        entering = 1 / (steps * (steps + 1)) / self._capital.shape[1]
        capital = np.minimum(compute_bets(ranks) * (self._capital[places] + entering[:, None]), MAX_CAPITAL)
        self._capital[places] = capital
        self._total[places] = capital.sum(axis=1) + 1 / (steps + 1)
        raised = places[(self._total[places] >= len(self._counts) / self.alpha) & (self._alarm_at[places] == 0)]
        self._alarm_at[raised] = self.seen

    def alarms(self) -> list[Drifting]:
        """List the classes and features that drift, the strongest evidence first."""
        found = []
        for place in np.flatnonzero(self._alarm_at).tolist():
            kind, index = (_SHARE, place) if place < self._classes else (_SCORE, place - self._classes)
            if place >= 2 * self._classes:
                kind, index = _FEATURE, place - 2 * self._classes
            direction = "higher" if self._mean[place] > 0.5 else "lower"
            found.append(
                Drifting(kind, index, direction, int(self._alarm_at[place]), float(np.log10(self._total[place])))
            )
        return sorted(found, key=lambda one: -one.evidence)


def _edges(rows: Array) -> Array:
    """Edges between quantiles of each column, as columns × (BINS - 1)."""
    return np.quantile(rows, np.linspace(0, 1, BINS + 1)[1:-1], axis=0).T.copy()


def _find_bins(edges: Array, rows: Array) -> Array:
    """The bin of each number: how many edges of its column are at most as large."""
    bins = np.zeros(rows.shape, np.int64)
    for edge in edges.T:
        bins += rows >= edge
    return bins
