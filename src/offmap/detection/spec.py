"""The text form of detectors: ``react(90)|dice(0.7)|energy``, ``knn(10) + 0.5*energy``.

It is read as syntax only; nothing in it is ever evaluated.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import fields
from typing import Any

from offmap.detection.auto import Auto
from offmap.detection.base import AUTO, Component
from offmap.detection.combination import COMBINATIONS
from offmap.detection.registry import METHODS
from offmap.detection.terms import Plan, Term
from offmap.errors import InputError

LONGEST = 2000

_LIKE = "write it like 'react(90)|energy' or 'knn(10) + energy'"
_OPERATORS = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[|@]|(?<=\w)\+\+(?!\s*\w)"""
)  # quoted texts stay as they are
_WRITTEN = {"|": "@", "++": "_pp"}  # @ binds before + in Python; mahalanobis++ is no name there
_MARKS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[()\[\],]""")  # a quoted text counts as one mark


def parse(spec: str) -> Plan:
    """Read a text form.

    ``|`` binds before ``+``; a number before a term is its weight; what stands before brackets goes into each term in
    them; a combination other than the sum is written around it.

    Parameters
    ----------
    spec : str
        Such as ``react(90)|energy``, ``0.5*knn(10) + energy`` or ``fisher(vim + msp)``.

    Returns
    -------
    Plan
        The terms it names.

    Raises
    ------
    InputError
        With a sentence that says what is wrong, and for an unknown name which ones are near.

    Examples
    --------
    >>> parse("react(c=1.0) | knn(50, alpha=0.01)").components
    (react(c=1.0), knn(50, alpha=0.01))
    >>> parse("react(90)|(energy + 0.5*msp)")
    react(90)|energy + 0.5*react(90)|msp
    >>> parse("mahalanobis++ + rmds++")
    mahalanobis_pp + rmds_pp
    """
    try:
        node, combine = _combination(_syntax(spec))
        return Plan(tuple(Term(chain, weight) for chain, weight in _terms(node, spec)), combine)
    except RecursionError as error:
        raise InputError(f"{spec[:40]!r}…: nested too deeply; {_LIKE}") from error


def split(specs: str) -> list[str]:
    """Split a text into text forms at commas outside parentheses.

    Parameters
    ----------
    specs : str
        Such as ``"energy, knn(10)"``.

    Returns
    -------
    list of str
        The text forms.

    Examples
    --------
    >>> split("msp, knn(50, alpha=0.01)|energy")
    ['msp', 'knn(50, alpha=0.01)|energy']
    """
    parts, depth, start = [], 0, 0
    for mark in _MARKS.finditer(specs):
        depth += (mark[0] in "([") - (mark[0] in ")]")
        if mark[0] == "," and depth == 0:
            parts.append(specs[start : mark.start()])
            start = mark.end()
    return [part.strip() for part in [*parts, specs[start:]] if part.strip()]


def text(component: Component) -> str:
    """Write the canonical text of one component: leading parameters by position, others by name, defaults left out.

    Parameters
    ----------
    component : Component
        A score or a shaper.

    Returns
    -------
    str
        Its text form.
    """
    shown = component.text_arguments()
    names = [field.name for field in fields(component)]
    words = []
    for place, (name, value) in enumerate(shown.items()):
        positional = name in component.shown and names[place] == name
        words.append(_literal(value) if positional else f"{name}={_literal(value)}")
    return f"{component.name}({', '.join(words)})" if words else component.name


def _literal(value: Any) -> str:
    if value == AUTO:
        return AUTO
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)


def _syntax(spec: str) -> ast.expr:
    """Python's syntax tree of the text as Python would have it written."""
    if len(spec) > LONGEST:
        raise InputError(f"a detector's text has at most {LONGEST} characters, this one has {len(spec)}")
    if any(mark[0] == "@" for mark in _OPERATORS.finditer(spec)):
        raise InputError(f"{spec!r}: '@' means nothing here; {_LIKE}")
    text = _OPERATORS.sub(lambda mark: _WRITTEN.get(mark[0], mark[0]), spec.strip())
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{spec!r} is not a detector; {_LIKE}") from error


def _combination(node: ast.expr) -> tuple[ast.expr, str]:
    """Return what is combined, and how: ``fisher(a + b)`` names the combination around the terms."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COMBINATIONS:
        if len(node.args) != 1 or node.keywords:
            raise InputError(f"{node.func.id} combines terms, as in {node.func.id}(knn(10) + energy)")
        return node.args[0], node.func.id
    return node, "sum"


def _terms(node: ast.expr, spec: str) -> list[tuple[tuple[Component, ...], float]]:
    """Chains and their weights, with brackets multiplied out."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left, spec), *_terms(node.right, spec)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        before, after = _terms(node.left, spec), _terms(node.right, spec)
        if len(before) > 1:
            raise InputError(f"{spec!r}: {_text(node.left)!r} is a sum, and only the last part of a chain can be one")
        (chain, weight) = before[0]
        return [((*chain, *rest), weight * factor) for rest, factor in after]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        weight = _weight(node.left, spec)
        return [(chain, weight * factor) for chain, factor in _terms(node.right, spec)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COMBINATIONS:
        raise InputError(f"{spec!r}: {node.func.id} combines all terms; write it around the whole detector")
    if isinstance(node, ast.Name | ast.Call):
        return [((_component(node, spec),), 1.0)]
    raise InputError(f"{spec!r}: {_text(node)!r} is not a method; {_LIKE}")


def _weight(node: ast.expr, spec: str) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{spec!r}: {_text(node)!r} is not a weight; write a number above 0, as in 0.5*knn(10)")
    return float(value)


def _text(node: ast.expr) -> str:
    return ast.unparse(node).replace(" @ ", "|")


def _component(node: ast.expr, spec: str) -> Component:
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name):
        raise InputError(f"{spec!r}: {_text(call.func)!r} is not the name of a method")
    kind = Auto if call.func.id == AUTO else METHODS.get(call.func.id, also=(AUTO, *COMBINATIONS))
    names = [field.name for field in fields(kind)]
    if len(call.args) > len(names):
        raise InputError(f"{kind.name} takes {_parameters(names)}, but {len(call.args)} values were given")
    given = {name: _value(arg, spec) for name, arg in zip(names, call.args, strict=False)}
    for keyword in call.keywords:
        if keyword.arg not in names:
            raise InputError(f"{kind.name} has no parameter {keyword.arg!r}; it takes {_parameters(names)}")
        if keyword.arg in given:
            raise InputError(f"{kind.name}: {keyword.arg} is given twice")
        given[keyword.arg] = _value(keyword.value, spec)
    return kind(**given)


def _parameters(names: list[str]) -> str:
    return ", ".join(names) or "no parameters"


_WORDS = {"true": True, "false": False, "none": None}


def _value(node: ast.expr, spec: str) -> Any:
    """Return a number, a word, a quoted text or a list of these."""
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id.lower(), node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(item, spec) for item in node.elts)
    if isinstance(node, ast.Attribute):  # a layer's name: block3.conv1
        return ast.unparse(node)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise InputError(f"{spec!r}: {_text(node)!r} is not a number or a word") from error
    if value is None or isinstance(value, int | float | str):
        return value
    raise InputError(f"{spec!r}: {_text(node)!r} is not a number or a word")
