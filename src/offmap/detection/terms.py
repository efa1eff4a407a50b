"""The layout of a detector: a sum of terms, each a chain of shapers that ends in a score.

Terms that begin alike share what they have in common, so that it is fitted once and computed once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from offmap.detection.base import Component
from offmap.detection.combination import COMBINATIONS
from offmap.errors import InputError


@dataclass(frozen=True)
class Term:
    """One summand: a chain of shapers that ends in a score, and its weight.

    Parameters
    ----------
    components : tuple of Component
        Any number of shapers, then one score.
    weight : float, default=1.0
        The factor of the standardised score in the sum; above 0.
    """

    components: tuple[Component, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 < self.weight < 1e300:
            raise InputError(f"weight {self.weight!r}: the weight of a term is a number above 0; higher means known")
        object.__setattr__(self, "weight", float(self.weight))

    @property
    def chain(self) -> str:
        """The text form without the weight."""
        return "|".join(map(repr, self.components))

    def __repr__(self) -> str:
        return self.chain if self.weight == 1 else f"{repr(self.weight).removesuffix('.0')}*{self.chain}"


@dataclass(frozen=True)
class Plan:
    """Terms and the way they are combined, laid out as a forest in which equal beginnings of terms are one node.

    Parameters
    ----------
    terms : tuple of Term
        At least one. Equal terms are added up to one with the sum of their weights.
    combine : str, default="sum"
        How the terms' scores become one; see `offmap.detection.combination`.

    Examples
    --------
    >>> from offmap.detection.spec import parse
    >>> plan = parse("react(90)|energy + react(90)|msp + 0.5*knn(10)")
    >>> plan.components
    (react(90), energy, msp, knn(10))
    >>> plan.parents
    (None, 0, 0, None)
    """

    terms: tuple[Term, ...]
    combine: str = "sum"

    def __post_init__(self) -> None:
        if not self.terms:
            raise InputError("nothing: a detector has at least one score, for example knn(10) + energy")
        if self.combine not in COMBINATIONS:
            raise InputError(f"combine={self.combine!r}: choose one of {', '.join(COMBINATIONS)}")
        weights: dict[tuple[Component, ...], float] = {}
        for term in self.terms:
            weights[term.components] = weights.get(term.components, 0.0) + term.weight
        merged = tuple(Term(components, weight) for components, weight in weights.items())
        object.__setattr__(self, "terms", merged)
        if len(merged) == 1:
            object.__setattr__(self, "combine", "sum")  # there is nothing to combine

    @classmethod
    def of(cls, components: Iterable[Component]) -> Plan:
        """Make the plan of one chain."""
        return cls((Term(tuple(components)),))

    def __repr__(self) -> str:
        text = " + ".join(map(repr, self.terms))
        return text if self.combine == "sum" else f"{self.combine}({text})"

    @property
    def is_sum(self) -> bool:
        """Whether there are several terms, which must be brought to one scale."""
        return len(self.terms) > 1

    @property
    def chains(self) -> tuple[tuple[Component, ...], ...]:
        """The components of each term."""
        return tuple(term.components for term in self.terms)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each term."""
        return tuple(term.weight for term in self.terms)

    def behind(self, shapers: Sequence[Component]) -> Plan:
        """Put shapers before every term."""
        return Plan(tuple(Term((*shapers, *term.components), term.weight) for term in self.terms), self.combine)

    def replace(self, change: Callable[[Component], Component]) -> Plan:
        """Make a plan with every component changed by a function, such as one that sets a seed."""
        terms = tuple(Term(tuple(map(change, term.components)), term.weight) for term in self.terms)
        return Plan(terms, self.combine)

    @cached_property
    def _layout(self) -> tuple[tuple[Component, ...], tuple[int | None, ...], tuple[int, ...]]:
        places: dict[tuple[Sequence[Component], Sequence[Component]], int] = {}
        components: list[Component] = []
        parents: list[int | None] = []
        ends: list[int] = []
        for term in self.terms:
            chain = term.components
            # A pass of the network that one part asks for is what all parts of its chain see: they share nothing
            # with terms that see another pass.
            passes = max((depth + 1 for depth, part in enumerate(chain) if part.own_pass), default=0)
            above: int | None = None
            for depth, component in enumerate(chain):
                key = (chain[: depth + 1], chain[:passes])
                if key not in places:
                    places[key] = len(components)
                    components.append(component)
                    parents.append(above)
                above = places[key]
            assert above is not None
            ends.append(above)
        return tuple(components), tuple(parents), tuple(ends)

    @property
    def components(self) -> tuple[Component, ...]:
        """The components by place; what several terms begin with stands there once."""
        return self._layout[0]

    @property
    def parents(self) -> tuple[int | None, ...]:
        """The place before each place; `None` for those that read the network's activations."""
        return self._layout[1]

    @property
    def ends(self) -> tuple[int, ...]:
        """The place of each term's score."""
        return self._layout[2]

    @cached_property
    def children(self) -> dict[int | None, tuple[int, ...]]:
        """The places that read what each place gives; those of `None` read the network's activations."""
        found: dict[int | None, list[int]] = {}
        for place, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(place)
        return {parent: tuple(places) for parent, places in found.items()}

    def path(self, place: int) -> tuple[int, ...]:
        """List the places from the network's activations to this one."""
        parent = self.parents[place]
        return (place,) if parent is None else (*self.path(parent), place)

    @cached_property
    def passes(self) -> dict[int, tuple[int, ...]]:
        """For each place without a parent, the places below it that ask for a pass of their own."""
        found: dict[int, dict[int, None]] = {}
        for end in self.ends:
            path = self.path(end)
            own = [place for place in path if self.components[place].own_pass]
            found.setdefault(path[0], {}).update(dict.fromkeys(own))
        return {root: tuple(places) for root, places in found.items()}

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """For each place, the place whose statistics it is solved from: the first that fits the same ones."""
        first: dict[Any, int] = {}
        found = []
        for place, component in enumerate(self.components):
            path = self.path(place)
            unshaped = component.fits_unshaped or component.keeps_rows
            seen = self.passes[path[0]] if unshaped and not component.fits_unshaped else ()
            key = (seen if unshaped else path[:-1], unshaped, type(component).observe, component.statistics_key())
            found.append(first.setdefault(key, place))
        return tuple(found)
