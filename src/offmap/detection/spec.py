"""The text form of detectors: ``react(90)|dice(0.7)|energy``. Read as syntax only; nothing in it is ever evaluated."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from typing import Any

from offmap.detection.base import AUTO, Component
from offmap.detection.registry import method
from offmap.errors import InputError

LONGEST = 2000

_MARKS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[()\[\],]""")  # a quoted text counts as one mark


def parse(spec: str) -> tuple[Component, ...]:
    """The components that a text names.

    Examples
    --------
    >>> parse("react(c=1.0) | knn(50, alpha=0.01)")
    (react(c=1.0), knn(50, alpha=0.01))
    """
    try:
        return tuple(_component(node, spec) for node in _stages(_syntax(spec), spec))
    except RecursionError as error:
        raise InputError(f"{spec[:40]!r}…: nested too deeply; write it like 'react(90)|energy'") from error


def split(specs: str) -> list[str]:
    """The texts of a list: commas outside parentheses separate them.

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
    """The canonical text of one component: leading parameters by position, the others by name, defaults left out."""
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
    if len(spec) > LONGEST:
        raise InputError(f"a detector's text has at most {LONGEST} characters, this one has {len(spec)}")
    try:
        return ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{spec!r} is not a detector; write it like 'react(90)|energy'") from error


def _stages(node: ast.expr, spec: str) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_stages(node.left, spec), *_stages(node.right, spec)]
    if isinstance(node, ast.Name | ast.Call):
        return [node]
    raise InputError(f"{spec!r}: {ast.unparse(node)!r} is not a method; write it like 'react(90)|energy'")


def _component(node: ast.expr, spec: str) -> Component:
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name):
        raise InputError(f"{spec!r}: {ast.unparse(call.func)!r} is not the name of a method")
    kind = method(call.func.id)
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
    """A number, a word, a quoted text or a list of these."""
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id.lower(), node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(item, spec) for item in node.elts)
    if isinstance(node, ast.Attribute):  # a layer's name: block3.conv1
        return ast.unparse(node)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise InputError(f"{spec!r}: {ast.unparse(node)!r} is not a number or a word") from error
    if value is None or isinstance(value, int | float | str):
        return value
    raise InputError(f"{spec!r}: {ast.unparse(node)!r} is not a number or a word")
