"""Axes of a drawing: from a value to a place between 0 and 1, and the round numbers along the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PAD = 0.04  # share of the range left free beside marks
TICKS = 8  # at most


@dataclass(frozen=True)
class Axis:
    """One axis: numbers between two limits, their logarithms, or names side by side.

    Parameters
    ----------
    low, high : float
        What stands at its ends; for names, from -0.5 to their number less 0.5.
    names : tuple of str, default=()
        The names of an axis of names.
    log : bool, default=False
        Whether the limits are logarithms to base 10.
    turned : bool, default=False
        Whether it runs the other way.
    percent : bool, default=False
        Whether ticks are written in per cent.

    Examples
    --------
    >>> axis = Axis(0.0, 4.0)
    >>> axis.place(1.0), axis.ticks()[:3]
    (0.25, [(0.0, '0'), (0.25, '1'), (0.5, '2')])
    """

    low: float
    high: float
    names: tuple[str, ...] = ()
    log: bool = False
    turned: bool = False
    percent: bool = False

    def place(self, value: Any) -> float:
        """Return where a value lies, 0 at the start of the axis and 1 at its end; NaN for nothing."""
        if self.names:
            number = float(self.names.index(str(value))) if str(value) in self.names else math.nan
        else:
            number = math.nan if value is None else float(value)
            if self.log:
                number = math.log10(number) if number > 0 else math.nan
        share = (number - self.low) / (self.high - self.low)
        return 1 - share if self.turned else share

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and what is written there."""
        if self.names:
            return [(self.place(name), name) for name in self.names]
        if self.log:
            powers = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            values = [10.0**power for power in powers]
            if len(values) < 2:
                values = [10**tick for tick in round_numbers(self.low, self.high)]
            return [(self.place(value), f"{value:.3g}") for value in values]
        values = round_numbers(self.low, self.high)
        step = values[1] - values[0] if len(values) > 1 else 1.0
        return [(self.place(value), self._written(value, step)) for value in values]

    def _written(self, value: float, step: float) -> str:
        if self.percent:
            return f"{100 * value:.{max(0, -math.floor(math.log10(100 * step) + 1e-9))}f}%"
        if max(abs(self.low), abs(self.high)) >= 1e6 or step < 1e-4:
            return f"{value:.3g}"
        return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def round_numbers(low: float, high: float) -> list[float]:
    """Return at most eight round numbers between two limits.

    Examples
    --------
    >>> round_numbers(-1.0, 9.0)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    size = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(one for one in (size, 2 * size, 5 * size, 10 * size) if (high - low) / one <= TICKS)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step + 0.0 for number in range(first, last + 1)]


def make_axis(values: Sequence[Any], options: Mapping[str, Any], *, start: float | None = None, tight: bool) -> Axis:
    """Make the axis that shows all values.

    Parameters
    ----------
    values : sequence
        Everything drawn along it: numbers, or names; nothing and infinite numbers are left out.
    options : mapping
        As plotly names them: `range`, `type`, `tickformat`, `autorange`.
    start : float or None, default=None
        A number that the axis begins at or includes, such as the foot of bars.
    tight : bool
        Whether the outermost values stand at the very ends.

    Examples
    --------
    >>> make_axis(["a", "b", "a"], {}, tight=True)
    Axis(low=-0.5, high=1.5, names=('a', 'b'), log=False, turned=False, percent=False)
    >>> make_axis([1.0, 5.0], {}, start=0.0, tight=False).low
    0.0
    """
    turned = options.get("autorange") == "reversed"
    if options.get("type") == "category" or any(isinstance(value, str) for value in values):
        names = tuple(dict.fromkeys(str(value) for value in values if value is not None))
        return Axis(-0.5, max(len(names), 1) - 0.5, names or ("",), turned=turned)
    percent = str(options.get("tickformat", "")).endswith("%")
    log = options.get("type") == "log"
    if options.get("range") is not None:
        low, high = (float(value) for value in options["range"])
        return Axis(low, high, log=log, percent=percent)
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if log:
        numbers = np.log10(numbers[numbers > 0])
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    if start is not None:
        low, high = min(low, start), max(high, start)
    if not high - low > 1e-12 * max(abs(low), abs(high), 1e-300):  # all alike: something to either side
        margin = abs(low) / 10 or 0.5
        low, high = low - margin, high + margin
    pad = 0.0 if tight else PAD * (high - low)
    return Axis(
        low if low == start else low - pad,
        high if high == start else high + pad,
        log=log, turned=turned, percent=percent,
    )  # fmt: skip
