"""Every method by name: this drives the text form, the command line, the docs, comparison and the common tests."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TypeVar, dataclass_transform

from offmap.detection.base import Component, Score
from offmap.errors import InputError
from offmap.registry import Registry

METHODS: Registry[type[Component]] = Registry("method", package="offmap.detection", group="offmap.methods")

C = TypeVar("C", bound=Component)


@dataclass_transform(frozen_default=True)
def register(method: type[C]) -> type[C]:
    """Make a method known by its name, and a frozen dataclass of its parameters. A decorator, also for your own code.

    Parameters
    ----------
    method : type
        A subclass of `Score` or `Shaper` with a `name`.

    Returns
    -------
    type
        The class itself, as a frozen dataclass.

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
    if not method.name.isidentifier():
        raise InputError(f"{method.__qualname__}.name = {method.name!r}: a method's name is a plain word")
    return METHODS.register(method.name)(dataclass(frozen=True, repr=False)(method))


def methods() -> dict[str, type[Component]]:
    """List all registered methods by name.

    Examples
    --------
    >>> {"energy", "react", "knn"} <= methods().keys()
    True
    """
    return dict(METHODS.items())


def method(name: str) -> type[Component]:
    """Look up a method by its name.

    Parameters
    ----------
    name : str
        As in text forms.

    Returns
    -------
    type
        A subclass of `Score` or `Shaper`.

    Raises
    ------
    InputError
        If there is no such method.
    """
    return METHODS.get(name)


def example_specs() -> list[str]:
    """List a text form for every method that makes a whole detector: shapers are followed by energy."""
    return [(kind.example or name) + ("" if issubclass(kind, Score) else "|energy") for name, kind in methods().items()]


def describe_signature(kind: type[Component]) -> str:
    """Write a method with its parameters and their defaults, as its text form takes them.

    Examples
    --------
    >>> describe_signature(METHODS.get("react"))
    'react(percentile=90, c=none, layer=none)'
    """
    parts = []
    for one in fields(kind):
        if not one.init:
            continue
        value = one.default
        text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
        parts.append(one.name if value is MISSING else f"{one.name}={text}")
    return f"{kind.name}({', '.join(parts)})" if parts else kind.name
