"""Checks of what must hold before components are put in a row, and before activations are shown to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from offmap.activations import Activations, Head
from offmap.detection.base import Component, Score, Shaper
from offmap.errors import InputError, MissingError

_REACHES = {"features": ("features", "logits"), "head": ("logits", "head"), "logits": ("logits",)}

_WAYS_OUT = {
    "features": "pass them to offmap.Activations(features, ...)",
    "logits": "pass logits=... or head=offmap.Head(weight, bias) to Activations",
    "head": "pass head=offmap.Head(weight, bias) to Activations",
    "labels": "pass labels=... to Activations",
}


def check_chain(components: Sequence[Component]) -> None:
    """Raise an `InputError` for a chain of components of which some would do nothing.

    Parameters
    ----------
    components : sequence of Component
        Shapers, then one score.

    Raises
    ------
    InputError
        With the reason, and a chain that would work.
    """
    text = "|".join(map(repr, components))
    if not components or not isinstance(components[-1], Score):
        example = f"{text}|energy" if text else "react(90)|energy"
        raise InputError(f"{text or 'nothing'}: a detector ends in a score, for example {example}")
    score = components[-1]
    for component in components[:-1]:
        if not isinstance(component, Shaper):
            raise InputError(f"{text}: {component} is a score, and only the last part can be one")
        if not set(_REACHES[component.shapes]) & set(score.reads):
            raise InputError(
                f"{text}: {component.name} changes the {component.shapes}, but {score.name} reads "
                f"{' and '.join(score.reads) or 'passes of its own'} only, so the shaper would do nothing"
            )
    for before, after in itertools.combinations(components, 2):
        anew = isinstance(after, Shaper) and after.shapes != "logits"
        if anew and isinstance(before, Shaper) and before.shapes == "logits":
            raise InputError(
                f"{text}: {after.name} computes the logits anew, so that what {before.name} does to them "
                f"would be lost; put {before.name} after {after.name}"
            )
        if before.own_pass and after.own_pass:
            raise InputError(f"{text}: {before} and {after} each ask for a pass of their own; keep one of them")


def list_required(chains: Iterable[Sequence[Component]], fitting: bool) -> dict[str, Component]:
    """List which of features, logits, head and labels must be there, each with a component that reads it.

    Parameters
    ----------
    chains : iterable of sequence of Component
        The components of each term.
    fitting : bool
        Whether for fitting rather than for scoring.

    Returns
    -------
    dict of str to Component
        By the name of what is read.
    """
    needed: dict[str, Component] = {}
    for chain in chains:
        for component in chain:
            words = set(component.reads) | (set(component.fits) if fitting else set())
            if isinstance(component, Shaper) and not {"logits", "head"} & set(chain[-1].reads):
                words -= set(component.reads) & {"head"}  # no logits to compute anew
            needed |= {word: component for word in sorted(words) if word not in needed}
    return needed


def missing_input(chains: Iterable[Sequence[Component]], acts: Activations, fitting: bool) -> str | None:
    """Name the first thing these components read that the activations lack; `None` when they lack nothing.

    Parameters
    ----------
    chains : iterable of sequence of Component
        The components of each term.
    acts : Activations
        What there is.
    fitting : bool
        Whether for fitting rather than for scoring.

    Returns
    -------
    str or None
        ``"features"``, ``"logits"``, ``"head"``, ``"labels"`` or `None`.
    """
    return next((word for word in list_required(chains, fitting) if not _present(acts, acts.head)[word]), None)


def _present(acts: Activations, head: Head | None) -> dict[str, bool]:
    with_head = acts.head is not None or head is not None
    return {
        "features": acts.has_features,
        "logits": acts.has_logits or (with_head and acts.has_features),
        "head": with_head,
        "labels": acts.labels is not None,
    }


def check_input(chains: Iterable[Sequence[Component]], acts: Activations, head: Head | None, fitting: bool) -> None:
    """Raise an error for activations that lack what these components read.

    Parameters
    ----------
    chains : iterable of sequence of Component
        The components of each term.
    acts : Activations
        What there is.
    head : Head or None
        A head from fitting, used where the activations have none.
    fitting : bool
        Whether for fitting rather than for scoring.

    Raises
    ------
    MissingError
        With the way to give what is missing.
    """
    needed = list_required(chains, fitting)
    there = _present(acts, head)
    for word, component in needed.items():
        if not there[word]:
            raise MissingError(f"{component} needs {word}: {_WAYS_OUT[word]}")
    if fitting and "labels" in needed and len(acts):
        assert acts.labels is not None
        if acts.labels.min() < 0:
            raise InputError("labels hold negative numbers; fit on labelled inputs only: acts[acts.labels >= 0]")
        if acts.has_logits and acts.labels.max() >= acts.n_classes:
            raise InputError(f"label {acts.labels.max()}: the network knows classes 0 to {acts.n_classes - 1}")
    if fitting and head is not None and acts.head is not None and not same_head(head, acts.head):
        raise InputError("these inputs come with another head than the earlier ones; fit on one network's activations")


def same_head(one: Head | None, other: Head | None) -> bool:
    """Return `True` if two heads have the same numbers, or neither exists.

    Parameters
    ----------
    one, other : Head or None
        The heads.

    Returns
    -------
    bool
        Whether they are equal.
    """
    if one is other or one is None or other is None:
        return one is other
    return np.array_equal(one.weight, other.weight) and np.array_equal(one.bias, other.bias)


def check_columns(detector: object, fitted: Sequence[str], given: Sequence[str]) -> None:
    """Raise an `InputError` for a DataFrame whose columns are not those that the detector was fitted on, in order.

    Parameters
    ----------
    detector : Detector
        For the message.
    fitted, given : sequence of str
        Names of the columns.

    Raises
    ------
    InputError
        With the way to bring them in order, or the first names that are missing or new.
    """
    if tuple(fitted) == tuple(given):
        return
    missing, new = [name for name in fitted if name not in given], [name for name in given if name not in fitted]
    if not missing and not new:
        raise InputError(
            f"{detector}: the columns come in another order than those it was fitted on; pass them in that order: "
            "frame[list(detector.columns)]"
        )
    parts = [
        f"{words} {', '.join(map(repr, names[:3]))}" for words, names in (("without", missing), ("with", new)) if names
    ]
    raise InputError(
        f"{detector}: a table {' and '.join(parts)}, unlike the one it was fitted on; pass the columns "
        "detector.columns, in that order"
    )
