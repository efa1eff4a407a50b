"""Every method by name: this drives the text form, the command line, the docs, comparison and the common tests."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TypeVar, dataclass_transform

from offmap.detection.base import Component, Score
from offmap.errors import InputError

_registered: dict[str, type[Component]] = {}

C = TypeVar("C", bound=Component)


@dataclass_transform(frozen_default=True)
def register(method: type[C]) -> type[C]:
    """Make a method known by its name, and a frozen dataclass of its parameters. A decorator, also for your own code.

    Examples
    --------
    >>> from offmap.detection import Score, register
    >>> @register
    ... class FirstLogit(Score):
    ...     '''The first logit.'''
    ...     name = "first_logit"
    ...     reads = ("logits",)
    ...     def score(self, block, ready):
    ...         return block.logits[:, 0]
    >>> import offmap
    >>> offmap.detector("first_logit")
    first_logit
    """
    taken = _registered.get(method.name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (method.__module__, method.__qualname__):
        raise InputError(
            f"the name {method.name!r} is taken by {taken.__module__}.{taken.__qualname__}; choose another"
        )
    if not method.name.isidentifier():
        raise InputError(f"{method.__qualname__}.name = {method.name!r}: a method's name is a plain word")
    _registered[method.name] = made = dataclass(frozen=True, repr=False)(method)
    return made


@cache
def _load_own() -> None:
    """Import every module of this package, so that a new file registers itself."""
    package = importlib.import_module("offmap.detection")
    for module in pkgutil.walk_packages(package.__path__, "offmap.detection."):
        importlib.import_module(module.name)


def methods() -> dict[str, type[Component]]:
    """All registered methods, by name.

    Examples
    --------
    >>> {"energy", "react", "knn"} <= methods().keys()
    True
    """
    _load_own()
    return dict(sorted(_registered.items()))


def method(name: str) -> type[Component]:
    """The method of that name."""
    found = methods().get(name)
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, _registered, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`offmap methods` lists them all"
        raise InputError(f"there is no method {name!r}; {hint}")
    return found


def example_specs() -> list[str]:
    """A text form for every method that makes a whole detector: shapers are followed by energy."""
    return [(kind.example or name) + ("" if issubclass(kind, Score) else "|energy") for name, kind in methods().items()]
