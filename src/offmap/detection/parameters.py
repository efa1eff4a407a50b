"""Parameters checked against their declared types, so that every method refuses nonsense in the same words."""

from __future__ import annotations

import math
import types
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

LARGEST = 2**63


def plain(value: Any) -> Any:
    """Turn NumPy's numbers into Python's and lists into tuples: what a text form can print and a file can hold.

    Parameters
    ----------
    value : Any
        Value of a parameter.

    Returns
    -------
    Any
        A value of Python's own types.

    Examples
    --------
    >>> plain(np.float64(0.5)), plain([1, np.int64(2)])
    (0.5, (1, 2))
    """
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def read_type_hints(kind: type) -> dict[str, Any]:
    """Read the types of a class's fields; none where they are written with names that cannot be found.

    Parameters
    ----------
    kind : type
        A class.

    Returns
    -------
    dict of str to Any
        Types by the name of the field.
    """
    return _cached_type_hints(kind)


@cache
def _cached_type_hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def conforms(value: Any, hint: Any) -> bool:
    """Check that a value is of the declared type; numbers must be finite and of a size that computers add.

    Parameters
    ----------
    value : Any
        Value of a parameter.
    hint : Any
        The declared type.

    Returns
    -------
    bool
        Whether it conforms.

    Examples
    --------
    >>> conforms(1, float), conforms(float("inf"), float), conforms(True, int), conforms("auto", int | Literal["auto"])
    (True, False, False, True)
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(conforms(value, option) for option in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if origin is tuple and len(get_args(hint)) == 2 and get_args(hint)[1] is Ellipsis:
        return isinstance(value, tuple) and all(conforms(item, get_args(hint)[0]) for item in value)
    if hint in (int, float):
        number = isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
        return number and -LARGEST <= value < LARGEST and math.isfinite(value)
    return isinstance(value, hint) if hint in (bool, str, types.NoneType) else True


def describe_type(hint: Any) -> str:
    """Put a declared type into words.

    Parameters
    ----------
    hint : Any
        The declared type.

    Returns
    -------
    str
        Such as ``"a whole number or 'auto'"``.

    Examples
    --------
    >>> describe_type(float | Literal["auto"] | None)
    'a finite number, auto or none'
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    words = []
    for option in options:
        if get_origin(option) is Literal:
            words += list(get_args(option))
        elif get_origin(option) is tuple:
            words.append(f"a list, each entry {describe_type(get_args(option)[0])}")
        else:
            words.append(_WORDS.get(option, str(option)))
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "a word",
    types.NoneType: "none",
}
