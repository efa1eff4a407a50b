"""Detect drift of scores from the calibration scores by a conformal test martingale.

Calibration scores and the scores of known inputs are exchangeable as long as nothing has changed. Then the rank of each
new score among all earlier ones, ties broken at random, is uniform on [0, 1] and independent of the earlier ranks
(Vovk, Nouretdinov & Gammerman 2003, "Testing exchangeability on-line"). A betting strategy against that at fair odds
has a capital that is a martingale, and by Ville's inequality (1939) a capital that starts at 1 ever reaches 1/α with
probability at most α, however long the test runs. So the capital may be inspected after every input, and an alarm at
1/α keeps its guarantee without a correction for repeated testing.

Ranks among the *fixed* calibration scores, the usual conformal p-values, would not do: given the calibration set they
are not exactly uniform, and a test that never ends detects that. Here new scores join the set in which later ones are
ranked. To keep this in constant memory, scores are put in bins whose edges come from a part of the calibration scores
that is not counted, so that only the counts per bin have to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offmap.errors import InputError
from offmap.typing import Array

BINS = 64
_CHUNK = 64  # bets multiplied at a time: 0.1 ** 64 is still a number
MAX_CAPITAL = 1e100  # at which betting stops
STAKES = np.array([-1.8, -0.9, -0.3, 0.3, 0.9, 1.8])


def compute_smoothed_ranks(bins: Array, counts: Array, noise: Array) -> tuple[Array, Array]:
    """Rank new values among all earlier ones, ties broken at random.

    With ``c`` the counts including the value itself: (Σ_{b' < b} c_b' + u·c_b) / Σ c, Vovk, Gammerman & Shafer (2005),
    equation (2.20).

    Parameters
    ----------
    bins : ndarray of int
        The bin of each new value, in the order of arrival.
    counts : ndarray of int
        The number of earlier values in each bin.
    noise : ndarray
        One number from the uniform distribution on [0, 1] for each new value.

    Returns
    -------
    ranks : ndarray
        One number in [0, 1] per new value.
    counts : ndarray of int
        Counts including the new values.

    Examples
    --------
    >>> compute_smoothed_ranks(np.array([1, 0]), np.array([1, 1]), np.array([0.5, 0.5]))
    (array([0.66666667, 0.25      ]), array([2, 2]))
    """
    n = len(bins)
    earlier = np.tril(np.ones((n, n), dtype=bool), -1)
    below_before = np.concatenate([[0], np.cumsum(counts)])[bins]
    below = below_before + (earlier & (bins[None, :] < bins[:, None])).sum(axis=1)
    equal = counts[bins] + (earlier & (bins[None, :] == bins[:, None])).sum(axis=1) + 1
    total = counts.sum() + np.arange(1, n + 1)
    return (below + noise * equal) / total, counts + np.bincount(bins, minlength=len(counts))


def compute_bets(ranks: Array) -> Array:
    """Compute the factor by which the capital of each betting function grows at each rank.

    Half of the betting functions expect scores to move (1 + s·(p - ½), Vovk et al. 2021, "Retrain or not retrain"),
    half expect them to spread or to concentrate (1 + s·(6(p - ½)² - ½) / 2), each with several stakes s. Each averages
    1 over [0, 1], so the bets are fair.

    Parameters
    ----------
    ranks : ndarray
        Numbers in [0, 1].

    Returns
    -------
    ndarray of shape (n_ranks, n_functions)
        Positive factors.

    Examples
    --------
    >>> grid = (np.arange(1000) + 0.5) / 1000
    >>> np.allclose(compute_bets(grid).mean(axis=0), 1, atol=1e-5), bool((compute_bets(grid) > 0).all())
    (True, True)
    """
    away = ranks[:, None] - 0.5
    moved = 1 + STAKES * away
    spread = 1 + STAKES * (6 * away**2 - 0.5) / 2
    return np.concatenate([moved, spread], axis=1)


def update_capital(capital: Array, ranks: Array, start: int) -> tuple[Array, Array]:
    """Update the capital of the betting functions by new ranks.

    A change may come at any time, so the capital is not bet at once: of the capital 1, the share 1/(k(k + 1)) is bet
    from the k-th rank on, and 1/(k + 1) is still in reserve after it. The total never falls below 1/(k + 1), so however
    long nothing happened, a change is detected after a delay that grows like the logarithm of that time.

    Parameters
    ----------
    capital : ndarray of shape (n_functions,)
        The capital of each betting function so far.
    ranks : ndarray
        At most 64 new ranks.
    start : int
        The number of earlier ranks.

    Returns
    -------
    capital : ndarray of shape (n_functions,)
        The capital of each betting function after all ranks.
    total : ndarray
        The total capital, with the reserve, after each rank.

    Examples
    --------
    >>> capital, total = update_capital(np.zeros(12), np.array([0.01, 0.01]), 0)
    >>> total.round(3)
    array([1.   , 1.159])
    """
    factors = np.cumprod(compute_bets(ranks), axis=0)
    place = np.arange(start + 1, start + 1 + len(ranks))
    entering = 1 / (place * (place + 1.0)) / len(capital)
    before = np.concatenate([np.ones((1, len(capital))), factors[:-1]])
    held = factors * (capital + np.cumsum(entering[:, None] / before, axis=0))
    return held[-1], held.sum(axis=1) + 1 / (place + 1.0)


@dataclass(frozen=True)
class DriftEvidence:
    """The state of the test.

    Parameters
    ----------
    capital, highest : float
        The capital now, and its maximum.
    alarm_at : int or None
        The input at which it first reached 1/α; `None` when it never did.
    seen : int
        The number of inputs.
    """

    capital: float
    highest: float
    alarm_at: int | None
    seen: int


class DriftMonitor:
    """Test a stream of scores for drift from the calibration scores.

    Parameters
    ----------
    calibration : ndarray
        Scores of held-out known inputs, in any order.
    alpha : float, default=0.01
        The probability that an alarm is ever raised while nothing has changed.
    seed : int, default=0
        Seed of the random numbers that break ties and split the calibration scores.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> drift = DriftMonitor(rng.normal(size=1000), alpha=0.01)
    >>> drift.update(rng.normal(size=2000)).alarm_at is None
    True
    >>> drift.update(rng.normal(-0.5, size=1000)).alarm_at
    2311
    """

    def __init__(self, calibration: Array, alpha: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError(f"alpha={alpha}: a probability between 0 and 1 is needed")
        if len(calibration) < 2:
            raise InputError(f"{len(calibration)} calibration scores: at least 2 are needed to test for drift")
        self.alpha = alpha
        self._rng = np.random.default_rng(seed)
        shuffled = self._rng.permutation(np.asarray(calibration, np.float64))
        n_edges = len(shuffled) // 4 + 1  # enough for the edges; new scores are ranked among all others
        levels = np.linspace(0, 1, min(BINS, n_edges) + 1)[1:-1]
        self.edges = np.unique(np.quantile(shuffled[:n_edges], levels))
        self._counts = np.bincount(self._find_bins(shuffled[n_edges:]), minlength=len(self.edges) + 1)
        self._capital = np.zeros(2 * len(STAKES))
        self.evidence = DriftEvidence(1.0, 1.0, None, 0)

    def update(self, scores: Array) -> DriftEvidence:
        """Update the test by new scores, in the order of arrival, and return its state."""
        for first in range(0, len(scores), _CHUNK):
            if self.evidence.capital < MAX_CAPITAL:
                self._update_chunk(np.asarray(scores[first : first + _CHUNK], np.float64))
        return self.evidence

    def _update_chunk(self, scores: Array) -> None:
        noise = self._rng.random(len(scores))
        ranks, self._counts = compute_smoothed_ranks(self._find_bins(scores), self._counts, noise)
        past = self.evidence
        self._capital, total = update_capital(self._capital, ranks, past.seen)
        alarm_at = past.alarm_at
        if alarm_at is None and total.max() >= 1 / self.alpha:
            alarm_at = past.seen + 1 + int(np.argmax(total >= 1 / self.alpha))
        highest = max(past.highest, float(total.max()))
        self.evidence = DriftEvidence(float(total[-1]), highest, alarm_at, past.seen + len(scores))

    def _find_bins(self, scores: Array) -> Array:
        return np.searchsorted(self.edges, scores, side="right")
