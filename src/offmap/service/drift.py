"""Has the stream of scores left the calibration scores? A sequential test whose false alarms stay bounded for ever.

Calibration scores and the scores of known inputs are exchangeable as long as nothing has changed. Then the rank of each
new score among all before it, ties broken at random, is uniform on [0, 1] and independent of the earlier ranks
(Vovk, Nouretdinov & Gammerman 2003, "Testing exchangeability on-line"). Whoever bets against that at fair odds has a
capital that is a martingale, and by Ville's inequality (1939) a capital that starts at 1 ever reaches 1/α with
probability at most α, however long one watches. So the capital may be looked at after every input, and an alarm at 1/α
keeps its promise without any correction for looking often.

Ranks among the *fixed* calibration scores, the usual conformal p-values, would not do: given the calibration set they
are not quite uniform, and a test that watches for ever finds that out. Here new scores join the set that later ones
are ranked in. To keep that in constant memory, scores are put in bins whose edges come from a part of the calibration
scores that is not counted; counts per bin are then all there is to remember.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offmap.errors import InputError
from offmap.typing import Array

BINS = 64
_CHUNK = 64  # bets multiplied in one go: 0.1 ** 64 is still a number
_ENOUGH = 1e100  # capital at which betting stops
_STAKES = np.array([-1.8, -0.9, -0.3, 0.3, 0.9, 1.8])


def smoothed_ranks(bins: Array, counts: Array, noise: Array) -> tuple[Array, Array]:
    """Ranks of new values among all before them, ties broken at random, and the counts afterwards.

    With ``c`` the counts including the value itself: (Σ_{b' < b} c_b' + u·c_b) / Σ c, Vovk, Gammerman & Shafer (2005),
    equation (2.20).

    Parameters
    ----------
    bins
        The bin of each new value, in the order they came.
    counts
        How many values every bin holds so far.
    noise
        One number from the uniform distribution on [0, 1] for each new value.

    Examples
    --------
    >>> smoothed_ranks(np.array([1, 0]), np.array([1, 1]), np.array([0.5, 0.5]))
    (array([0.66666667, 0.25      ]), array([2, 2]))
    """
    n = len(bins)
    earlier = np.tril(np.ones((n, n), dtype=bool), -1)
    below_before = np.concatenate([[0], np.cumsum(counts)])[bins]
    below = below_before + (earlier & (bins[None, :] < bins[:, None])).sum(axis=1)
    equal = counts[bins] + (earlier & (bins[None, :] == bins[:, None])).sum(axis=1) + 1
    total = counts.sum() + np.arange(1, n + 1)
    return (below + noise * equal) / total, counts + np.bincount(bins, minlength=len(counts))


def bets(ranks: Array) -> Array:
    """By what factor each bettor's capital grows at each rank: fair, as each averages 1 over [0, 1].

    Half of the bettors expect scores to move (1 + s·(p - ½), Vovk et al. 2021, "Retrain or not retrain"), half expect
    them to spread or to gather (1 + s·(6(p - ½)² - ½) / 2), each with several stakes s.

    Examples
    --------
    >>> grid = (np.arange(1000) + 0.5) / 1000
    >>> np.allclose(bets(grid).mean(axis=0), 1, atol=1e-5), bool((bets(grid) > 0).all())
    (True, True)
    """
    away = ranks[:, None] - 0.5
    moved = 1 + _STAKES * away
    spread = 1 + _STAKES * (6 * away**2 - 0.5) / 2
    return np.concatenate([moved, spread], axis=1)


def grown(capital: Array, ranks: Array, start: int) -> tuple[Array, Array]:
    """The bettors' capitals after some ranks, and the total after each rank.

    A change may come at any time, so not all bettors start at once: of the capital 1, the share 1/(k(k + 1)) enters
    before the k-th rank and 1/(k + 1) still lies idle after it. The total never falls below 1/(k + 1), so however long
    nothing happened, a change is seen after a delay that grows like the logarithm of that time.

    Parameters
    ----------
    capital
        Of each bettor so far.
    ranks
        At most 64 of them.
    start
        How many ranks there were before.

    Examples
    --------
    >>> capital, total = grown(np.zeros(12), np.array([0.01, 0.01]), 0)
    >>> total.round(3)
    array([1.   , 1.159])
    """
    factors = np.cumprod(bets(ranks), axis=0)
    place = np.arange(start + 1, start + 1 + len(ranks))
    entering = 1 / (place * (place + 1.0)) / len(capital)
    before = np.concatenate([np.ones((1, len(capital))), factors[:-1]])
    held = factors * (capital + np.cumsum(entering[:, None] / before, axis=0))
    return held[-1], held.sum(axis=1) + 1 / (place + 1.0)


@dataclass(frozen=True)
class Evidence:
    """Where the test stands: the capital now, its maximum, when it first reached 1/α (`None`: never), inputs seen."""

    capital: float
    highest: float
    alarm_at: int | None
    seen: int


class Drift:
    """Watches scores for drift from the calibration scores.

    Parameters
    ----------
    calibration
        Scores of held-out known inputs, in any order.
    alpha
        The chance that an alarm is ever raised while nothing has changed.
    seed
        Of the random numbers that break ties and split the calibration scores.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> drift = Drift(rng.normal(size=1000), alpha=0.01)
    >>> drift.update(rng.normal(size=2000)).alarm_at is None
    True
    >>> drift.update(rng.normal(-0.5, size=1000)).alarm_at
    2311
    """

    def __init__(self, calibration: Array, alpha: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError(f"alpha={alpha}: a chance between 0 and 1 is needed")
        if len(calibration) < 2:
            raise InputError(f"{len(calibration)} calibration scores: at least 2 are needed to watch for drift")
        self.alpha = alpha
        self._rng = np.random.default_rng(seed)
        shuffled = self._rng.permutation(np.asarray(calibration, np.float64))
        aside = len(shuffled) // 4 + 1  # enough for edges; the others are worth more as what new scores are ranked in
        levels = np.linspace(0, 1, min(BINS, aside) + 1)[1:-1]
        self.edges = np.unique(np.quantile(shuffled[:aside], levels))
        self._counts = np.bincount(self._binned(shuffled[aside:]), minlength=len(self.edges) + 1)
        self._capital = np.zeros(2 * len(_STAKES))
        self.evidence = Evidence(1.0, 1.0, None, 0)

    def update(self, scores: Array) -> Evidence:
        """Take in new scores in the order they came."""
        for first in range(0, len(scores), _CHUNK):
            if self.evidence.capital < _ENOUGH:
                self._take(np.asarray(scores[first : first + _CHUNK], np.float64))
        return self.evidence

    def _take(self, scores: Array) -> None:
        noise = self._rng.random(len(scores))
        ranks, self._counts = smoothed_ranks(self._binned(scores), self._counts, noise)
        past = self.evidence
        self._capital, total = grown(self._capital, ranks, past.seen)
        alarm_at = past.alarm_at
        if alarm_at is None and total.max() >= 1 / self.alpha:
            alarm_at = past.seen + 1 + int(np.argmax(total >= 1 / self.alpha))
        highest = max(past.highest, float(total.max()))
        self.evidence = Evidence(float(total[-1]), highest, alarm_at, past.seen + len(scores))

    def _binned(self, scores: Array) -> Array:
        return np.searchsorted(self.edges, scores, side="right")
