"""Values as they stand in a table: numbers rounded alike, the best one marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, the number it sorts by, and whether it is the best of its column."""

    shown: str
    value: float | None = None
    best: bool = False


def column_cells(values: list[Any], digits: int, best: str | None) -> list[Cell]:
    """Make the cells of one column and mark the best number.

    Cells that look equal are marked alike, unless that is most of the column.

    Parameters
    ----------
    values : list
        What the column shows.
    digits : int
        After the decimal point.
    best : {"max", "min"} or None
        Which number is the best.

    Returns
    -------
    list of Cell
        In the same order.

    Examples
    --------
    >>> [(cell.shown, cell.best) for cell in column_cells([47.444, 4.2, None], 1, "min")]
    [('47.4', False), ('4.2', True), ('–', False)]
    """
    numbers = [number(value) for value in values]
    finite = [value for value in numbers if value is not None and np.isfinite(value)]
    whole = all(isinstance(value, int | np.integer) for value in values if value is not None)
    shown = [
        plain(value) if value_number is None or whole else f"{value_number:.{digits}f}"
        for value, value_number in zip(values, numbers, strict=True)
    ]
    target = None
    if best is not None and finite:
        target = f"{max(finite) if best == 'max' else min(finite):.{digits}f}"
    equal = [target is not None and value is not None and f"{value:.{digits}f}" == target for value in numbers]
    tells = 0 < sum(equal) <= max(1, len(values) // 2)
    return [Cell(text, value, tells and same) for text, value, same in zip(shown, numbers, equal, strict=True)]


def number(value: Any) -> float | None:
    """Convert a value to a number.

    Parameters
    ----------
    value : Any
        Value of a cell.

    Returns
    -------
    float or None
        `None` for text, truth values and nothing.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    return float(value)


def plain(value: Any) -> str:
    """Write a value as text: a dash for nothing, yes and no for truth values.

    Parameters
    ----------
    value : Any
        Value of a cell or a setting.

    Returns
    -------
    str
        The text.

    Examples
    --------
    >>> plain(None), plain(True), plain([1, 2]), plain(0.1)
    ('–', 'yes', '1, 2', '0.1')
    """
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, np.generic):
        return str(value.item())
    return str(value)


def shorten(text: str, longest: int) -> str:
    """Bring a text to one line of at most so many characters.

    Examples
    --------
    >>> shorten("one  two  three", 9)
    'one two …'
    """
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
