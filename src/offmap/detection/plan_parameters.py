"""The parameters of a plan by name, ``component__parameter``, as scikit-learn's tools read and set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from offmap.detection.terms import Plan, Term
from offmap.errors import InputError


def list_parameters(plan: Plan) -> dict[str, Any]:
    """List all parameters of a plan.

    Parameters
    ----------
    plan : Plan
        Terms of shapers and scores.

    Returns
    -------
    dict of str to Any
        The values by name. Of a method used twice ``react-1__…`` and ``react-2__…``; of a sum also ``weights`` and
        ``combine``.

    Examples
    --------
    >>> from offmap.detection.spec import parse
    >>> list_parameters(parse("energy + 2*msp"))
    {'weights': (1.0, 2.0), 'combine': 'sum', 'energy__temperature': 1.0}
    """
    of_sum = {"weights": plan.weights, "combine": plan.combine} if plan.is_sum else {}
    return of_sum | {
        f"{name}__{field}": value
        for name, component in zip(_component_names(plan), plan.components, strict=True)
        for field, value in asdict(component).items()
    }


def replace_parameters(plan: Plan, values: Mapping[str, Any]) -> Plan:
    """Make a plan with other values of some parameters.

    Parameters
    ----------
    plan : Plan
        Terms of shapers and scores.
    values : mapping of str to Any
        By the names that `list_parameters` gives.

    Returns
    -------
    Plan
        A new one.

    Raises
    ------
    InputError
        If there is no parameter of that name, or a value is not allowed.

    Examples
    --------
    >>> from offmap.detection.spec import parse
    >>> replace_parameters(parse("react(90)|knn(5)"), {"knn__k": 10})
    react(90)|knn(10)
    """
    there = list_parameters(plan)
    if unknown := values.keys() - there.keys():
        raise InputError(
            f"{plan}.set_params({min(unknown)}=...): there is no such parameter; there are {', '.join(there)}"
        )
    changed = [
        replace(
            component,
            **{key.removeprefix(f"{name}__"): value for key, value in values.items() if key.startswith(f"{name}__")},
        )
        for name, component in zip(_component_names(plan), plan.components, strict=True)
    ]
    weights = values.get("weights", plan.weights)
    if len(weights) != len(plan.terms):
        raise InputError(f"{plan}.set_params(weights={weights!r}): one weight for each of {len(plan.terms)} terms")
    chains = [tuple(changed[place] for place in plan.path(end)) for end in plan.ends]
    terms = tuple(Term(chain, weight) for chain, weight in zip(chains, weights, strict=True))
    return Plan(terms, values.get("combine", plan.combine))


def _component_names(plan: Plan) -> list[str]:
    """Return the name of each component, with a number where a method is used more than once."""
    names = [component.name for component in plan.components]
    return [
        f"{name}-{names[: place + 1].count(name)}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]
