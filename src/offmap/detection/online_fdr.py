"""Flag unknown inputs of a stream, one after the other, with a bound on the share of false alarms among the flagged.

Each input is judged when it comes, at a level that earlier judgements have earned. LORD++ (Ramdas, Yang, Wainwright &
Jordan 2017) and SAFFRON (Ramdas, Zrnic, Wainwright & Jordan 2018) keep the false discovery rate at every moment below
the level asked for, if the p-values of known inputs are independent and no smaller than uniform ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from offmap.detection.verdicts import Verdicts
from offmap.errors import InputError
from offmap.typing import Array

if TYPE_CHECKING:
    from offmap.detection.plan_calibrator import PlanCalibrator

KEPT = 10_000  # discoveries whose share of later levels is remembered; older ones add next to nothing
_LORD_SUM = 0.0790  # with which the shares of all times add up to a little less than 1
_SAFFRON_SUM = 0.4374901657  # 1 / ζ(1.6)


class OnlineFDR(ABC):
    """Levels for a stream of p-values.

    Parameters
    ----------
    fdr : float, default=0.1
        The false discovery rate not to exceed at any time.
    """

    def __init__(self, fdr: float = 0.1) -> None:
        if not 0 < fdr < 1:
            raise InputError(f"fdr={fdr}: a rate between 0 and 1 is needed")
        self.fdr = fdr
        self.seen = 0
        self.discoveries = 0
        self._clock = 0  # of the procedure
        self._times = np.zeros(0)  # of discoveries after the first, on that clock
        self._first: int | None = None

    def update(self, p_values: Array) -> Array:
        """Judge p-values in the order of arrival.

        Parameters
        ----------
        p_values : array of shape (n,)
            Of new inputs.

        Returns
        -------
        array of bool, shape (n,)
            Whether each is a discovery: an unknown input.
        """
        found = np.zeros(len(p_values), bool)
        for row, value in enumerate(np.asarray(p_values, np.float64)):
            found[row] = value <= self.level()
            self._record(float(value), bool(found[row]))
        return found

    def level(self) -> float:
        """Compute the level at which the next p-value is judged.

        With γ the share of a time, t the present one, τ_j that of the j-th discovery and w₀ = α / 2:
        γ_t w₀ + (α - w₀) γ_{t - τ₁} + α Σ_{j ≥ 2} γ_{t - τ_j}.
        """
        now, start = self._clock + 1.0, self.fdr / 2
        total = start * self.share(np.array([now])).sum()
        if self._first is not None:
            total += (self.fdr - start) * self.share(np.array([now - self._first])).sum()
            total += self.fdr * self.share(now - self._times).sum()
        return float(total)

    @abstractmethod
    def share(self, times: Array) -> Array:
        """Give the share γ of the level that falls to each time; all shares add up to at most 1."""

    def _record(self, value: float, found: bool) -> None:
        self.seen += 1
        self._clock += self._moves_clock(value)
        if not found:
            return
        self.discoveries += 1
        if self._first is None:
            self._first = self._clock
        else:
            self._times = np.append(self._times, self._clock)[-KEPT:]

    def _moves_clock(self, value: float) -> bool:
        return True


class LORD(OnlineFDR):
    """LORD++: every discovery adds to the levels that follow, ever less with the time since then.

    Parameters
    ----------
    fdr : float, default=0.1
        The false discovery rate not to exceed at any time.

    Examples
    --------
    >>> LORD(0.1).update(np.array([0.0001, 0.5, 0.001, 0.3]))
    array([ True, False,  True, False])
    """

    def share(self, times: Array) -> Array:
        """Give γ_t ∝ log(max(t, 2)) / (t · exp(√log t)) (Javanmard & Montanari 2018)."""
        return _LORD_SUM * np.log(np.maximum(times, 2)) / (times * np.exp(np.sqrt(np.log(times))))


class SAFFRON(OnlineFDR):
    """SAFFRON: as LORD++, but levels only fall at p-values above a bound; smaller ones cost nothing.

    Where many inputs are unknown it finds more of them.

    Parameters
    ----------
    fdr : float, default=0.1
        The false discovery rate not to exceed at any time.
    bound : float, default=0.5
        No p-value above it is a discovery.

    Examples
    --------
    >>> SAFFRON(0.1).update(np.array([0.0001, 0.5, 0.001, 0.3]))
    array([ True, False,  True, False])
    """

    def __init__(self, fdr: float = 0.1, bound: float = 0.5) -> None:
        super().__init__(fdr)
        if not 0 < bound < 1:
            raise InputError(f"bound={bound}: a number between 0 and 1 is needed")
        self.bound = bound

    def level(self) -> float:
        """Compute the level: that of LORD++ on a clock that stands still at p-values up to the bound."""
        return min(self.bound, (1 - self.bound) * super().level())

    def share(self, times: Array) -> Array:
        """Give γ_t ∝ t^-1.6."""
        return _SAFFRON_SUM * times**-1.6

    def _moves_clock(self, value: float) -> bool:
        return value > self.bound


Procedure = Literal["lord", "saffron"]
PROCEDURES: dict[str, type[OnlineFDR]] = {"lord": LORD, "saffron": SAFFRON}


def make_procedure(name: str, fdr: float) -> OnlineFDR:
    """Make a procedure by its name, ``"lord"`` or ``"saffron"``."""
    if name not in PROCEDURES:
        raise InputError(f"procedure={name!r}: choose one of {', '.join(PROCEDURES)}")
    return PROCEDURES[name](fdr)


class VerdictStream:
    """Judge batches of a stream with a detector, at levels that earlier judgements have earned.

    Made by `Detector.stream`.

    Parameters
    ----------
    detector : Detector
        Calibrated, without weights.
    procedure : OnlineFDR
        Gives the levels.
    confidence : float or None
        In the calibration set; see `offmap.detection.p_values.conditional_p_values`.
    """

    def __init__(self, detector: PlanCalibrator, procedure: OnlineFDR, confidence: float | None) -> None:
        self.detector, self.procedure, self.confidence = detector, procedure, confidence

    @property
    def can_flag(self) -> bool:
        """Whether the present level is at least as large as the smallest p-value that there is."""
        calibration = self.detector.calibration
        assert calibration is not None
        n = len(calibration.scores)
        if calibration.classes is not None:
            n = int(np.bincount(calibration.classes).max())
        least = 1 / (n + 1) if self.confidence is None else -np.expm1(np.log1p(-self.confidence) / max(n // 2, 1))
        return bool(self.procedure.level() >= least)

    def __call__(self, acts: Any, device: str | torch.device = "cpu") -> Verdicts:
        """Judge inputs in the order of arrival.

        Parameters
        ----------
        acts : Activations or array
            Of new inputs.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        Verdicts
            Known where the procedure does not flag the input.
        """
        found, calibration = self.detector.verdicts(acts, device=device), self.detector.calibration
        assert calibration is not None
        values = found.p_value
        if self.confidence is not None:
            values = calibration.conditional_p_values(found.score, self.confidence, found.predicted)
        return replace(found, p_value=values, known=~self.procedure.update(values))
