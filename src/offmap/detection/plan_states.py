"""`PlanStates`: the fitted states of the components of a plan, and how batches are shaped and scored with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from offmap.activations import Head
from offmap.detection.base import Score, Shaper, State
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.combination import Combiner
from offmap.detection.terms import Plan
from offmap.errors import NotFittedError
from offmap.extra_passes import Request


class PlanStates:
    """The fitted states of the components of a plan, for one network.

    Parameters
    ----------
    plan : Plan
        The terms, with every ``auto`` decided.
    head : Head or None, default=None
        The network's last linear layer, where it is known.

    Attributes
    ----------
    states : list of State or None
        The fitted tensors of each component; `None` for one that is not solved yet.
    combination : State or None
        What brings the terms of a sum to one scale.
    """

    def __init__(self, plan: Plan, head: Head | None = None) -> None:
        self.plan, self.head = plan, head
        self.states: list[State | None] = [None for _ in plan.components]
        self.combination: State | None = None
        self._ready: dict[tuple[int | str, str], Any] = {}

    @property
    def is_solved(self) -> bool:
        """Whether every component is solved."""
        return all(state is not None for state in self.states)

    def requests(self) -> tuple[Request, ...]:
        """List what must be asked of the network beyond features and logits, for what comes next."""
        found: list[Request] = []
        for place, component in enumerate(self.plan.components):
            # what stands behind a component that is not solved cannot say yet what it will ask for
            solved = all(self.states[before] is not None for before in self.plan.path(place))
            state = self.states[place] if solved else None
            found += component.requests(state, partial(self._shape_with_head, place))
        return tuple(found)

    def _extras(self) -> tuple[str, ...]:
        return tuple(name for request in self.requests() for name in request.outputs)

    def _shape_with_head(self, place: int, batch: ActivationBatch) -> ActivationBatch:
        return self.shape_before(place, replace(batch, head=batch.head or self.tensor_head(batch.device)))

    def shape_before(self, place: int, batch: ActivationBatch) -> ActivationBatch:
        """Shape a batch as the component at this place reads it.

        Parameters
        ----------
        place : int
            Place of the component in the plan.
        batch : ActivationBatch
            As the network gave it.

        Returns
        -------
        ActivationBatch
            The shaped batch.
        """
        for before in self.plan.path(place)[:-1]:
            component = self.plan.components[before]
            assert isinstance(component, Shaper)
            batch = component.shape(batch, self.prepare(before, batch))
        return batch

    def shape(self, batch: ActivationBatch) -> ActivationBatch:
        """Shape a batch by the shapers that all terms have in common; by none when they differ."""
        chains = {self.plan.path(end)[:-1] for end in self.plan.ends}
        return self.shape_before(self.plan.ends[0], batch) if len(chains) == 1 else batch

    def score(self, batch: ActivationBatch) -> Tensor:
        """Give one number per input."""
        if not self.plan.is_sum:
            weight = self.plan.weights[0]
            score = self.score_terms(batch)[0]
            return score if weight == 1 else weight * score
        combiner = self.combiner(batch.device)
        return combiner(self.score_terms(batch, combiner.live))

    def score_terms(self, batch: ActivationBatch, terms: Iterable[int] | None = None) -> dict[int, Tensor]:
        """Score each term as its method defines it.

        Parameters
        ----------
        batch : ActivationBatch
            As the network gave it.
        terms : iterable of int or None, default=None
            The numbers of the terms; all when `None`.

        Returns
        -------
        dict of int to Tensor
            Scores by the number of the term.
        """

        def score(place: int, shaped: ActivationBatch) -> Tensor:
            component = self.plan.components[place]
            assert isinstance(component, Score)
            return component.score(shaped, self.prepare(place, shaped))

        return self._walk(batch, score, terms, view=True)

    def formula(self) -> Callable[[ActivationBatch], Tensor]:
        """Give the score as a function of tensor operations alone, from which a graph can be drawn."""
        formulas: dict[int, Callable[[ActivationBatch], Tensor]] = {}
        for end in self.plan.ends:
            component, state = self.plan.components[end], self.states[end]
            assert isinstance(component, Score)
            assert state is not None
            formulas[end] = component.formula(state)
        for place, component in enumerate(self.plan.components):
            if isinstance(component, Shaper):
                self.prepare(place, ActivationBatch())
        combiner = self.combiner("cpu") if self.plan.is_sum else None
        weight = self.plan.weights[0]
        factor = torch.tensor(weight, dtype=torch.float64)  # a plain number would be traced in float32

        live = None if combiner is None else combiner.live

        def evaluate(batch: ActivationBatch) -> Tensor:
            found = self._walk(batch, lambda place, shaped: formulas[place](shaped), live, view=False)
            if combiner is not None:
                return combiner(found)
            return found[0].double() if weight == 1 else found[0].double() * factor

        return evaluate

    def _walk(
        self,
        batch: ActivationBatch,
        score: Callable[[int, ActivationBatch], Tensor],
        terms: Iterable[int] | None,
        view: bool,
    ) -> dict[int, Tensor]:
        """Shape the batch along every branch and score it at the ends, depth first: few shaped copies at a time."""
        wanted = range(len(self.plan.ends)) if terms is None else terms
        numbers = {self.plan.ends[number]: number for number in wanted}
        needed = {place for end in numbers for place in self.plan.path(end)}
        found: dict[int, Tensor] = {}

        def follow(place: int, seen: ActivationBatch) -> None:
            component = self.plan.components[place]
            if isinstance(component, Shaper):
                shaped = component.shape(seen, self.prepare(place, seen))
                for child in self.plan.children.get(place, ()):
                    if child in needed:
                        follow(child, shaped)
            else:
                found[numbers[place]] = score(place, seen)

        for root in self.plan.children[None]:
            if root in needed:
                follow(root, self._view(batch, root) if view else batch)
        return found

    def _view(self, batch: ActivationBatch, root: int) -> ActivationBatch:
        """Return the batch as the pass that a component of this branch asked for saw it."""
        for place in self.plan.passes[root]:
            state = self.states[place]
            assert state is not None
            batch = self.plan.components[place].view(batch, state)
        return batch

    def combiner(self, device: str | torch.device) -> Combiner:
        """Give what combines the terms of a sum, on a device; made once."""
        if self.combination is None:
            raise NotFittedError(f"{self.plan}: its terms are not standardised yet")
        key = ("combination", str(device))
        if key not in self._ready:
            on_device = {name: tensor.to(device) for name, tensor in self.combination.items()}
            self._ready[key] = Combiner(on_device, self.plan.weights, self.plan.combine)
        combiner: Combiner = self._ready[key]
        return combiner

    def prepare(self, place: int, batch: ActivationBatch) -> Any:
        """Return what the component at this place scores or shapes with, on the batch's device; made once.

        Parameters
        ----------
        place : int
            Place of the component in the plan.
        batch : ActivationBatch
            It names the device.

        Returns
        -------
        Any
            What the component's `prepare` returned.
        """
        state = self.states[place]
        if state is None:
            raise NotFittedError(f"{self.plan.components[place]} is not fitted yet")
        key = (place, str(batch.device))
        if key not in self._ready:
            on_device = {name: tensor.to(batch.device) for name, tensor in state.items()}
            self._ready[key] = self.plan.components[place].prepare(on_device)
        return self._ready[key]

    def tensor_head(self, device: str | torch.device) -> TensorHead | None:
        """Give the network's head on a device; made once."""
        if self.head is None:
            return None
        key = ("head", str(device))
        if key not in self._ready:
            self._ready[key] = TensorHead.of(self.head, device)
        head: TensorHead = self._ready[key]
        return head
