"""The machinery behind a detector: what its components have seen of the data, and what was solved from it.

Components wait for one another: a score that is fitted on shaped activations can only see them once the shapers before
it are solved, and the terms of a sum are standardised once all of them are. `Fitting` keeps track of who has seen what,
so that one reading of the data is enough wherever it can be.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offmap.activations import Activations, Head
from offmap.detection.base import Context, Score, Shaper, State, digest
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.checks import same_head
from offmap.detection.combination import Combiner, fit_combination
from offmap.detection.holdout import HeldOut
from offmap.detection.statistics import NullStatistic
from offmap.detection.terms import Plan
from offmap.errors import InputError, NotFittedError, OffmapWarning
from offmap.extra_passes import Request


class Fitting:
    """Statistics and states of the components of a plan, for one network.

    Parameters
    ----------
    plan : Plan
        The terms, with every ``auto`` decided.
    head : Head or None
        The network's last linear layer, where it is known.
    width, n_classes : int or None
        How many features and logits an input has, where there are any.
    hold_out : bool, default=True
        Whether a share of the inputs is set aside to standardise the terms of a sum on. If not, `standardize` must be
        called with other inputs.
    """

    def __init__(
        self,
        plan: Plan,
        head: Head | None = None,
        width: int | None = None,
        n_classes: int | None = None,
        hold_out: bool = True,
    ) -> None:
        self.plan = plan
        self.head, self.width, self.n_classes = head, width, n_classes
        self.statistics: list[dict[str, Any]] = [
            dict(component.statistics()) if plan.sources[place] == place else {}
            for place, component in enumerate(plan.components)
        ]
        self.states: list[State | None] = [None for _ in plan.components]
        self.read_through: set[int] = set()  # components whose statistics have seen all the data
        self.refining: set[tuple[int, str]] = set()  # statistics that read the data a second time now
        self.shown = 0  # inputs in this reading of the data
        self.held_out = HeldOut() if plan.is_sum and hold_out else None
        self.combination: State | None = None  # of a sum: what brings the terms to one scale
        self._ready: dict[tuple[int | str, str], Any] = {}

    @classmethod
    def of(cls, plan: Plan, acts: Activations, hold_out: bool = True) -> Fitting:
        """Start a fresh one for the network that these activations come from."""
        width = acts.features.shape[1] if acts.has_features else None
        fitting = cls(plan, acts.head, width, acts.n_classes if acts.has_logits else None, hold_out)
        fitting.solve()
        return fitting

    @property
    def is_solved(self) -> bool:
        """Whether every component is solved."""
        return all(state is not None for state in self.states)

    @property
    def needs_reading(self) -> bool:
        """Whether the data must be read, or read once more."""
        return not self.is_solved or self.held_out is not None

    @property
    def is_done(self) -> bool:
        """Whether it can score."""
        return self.is_solved and (not self.plan.is_sum or self.combination is not None)

    def show(self, acts: Activations, device: str | torch.device = "cpu") -> None:
        """Show a block to the statistics that can read it now; in a second pass to those that asked for it."""
        with torch.no_grad():
            batch = ActivationBatch.of(acts, self.tensor_head(device), device, tuple(acts.extras))
            if self.held_out is not None:
                if self.is_solved:  # this reading is there for what only a fitted term asks of the network
                    for name in self._extras():
                        batch.extra(name)
                batch = batch.select(~self.held_out.update(batch))
            if len(batch):
                self._observe(batch)
        self.shown += len(acts)

    def _observe(self, raw: ActivationBatch) -> None:
        for root in self.plan.children[None]:
            viewed = raw
            for place in self.plan.passes[root]:
                state = self.states[place]
                if state is not None and place not in self.plan.ends:
                    viewed = self.plan.components[place].view(viewed, state)
            self._observe_from(root, raw, viewed, viewed)

    def _observe_from(
        self, place: int, raw: ActivationBatch, viewed: ActivationBatch, seen: ActivationBatch | None
    ) -> None:
        component = self.plan.components[place]
        if self.statistics[place] and place not in self.read_through and self._can_read(place):
            batch = raw if component.fits_unshaped else viewed if component.keeps_rows else seen
            assert batch is not None
            component.observe(self._reading_statistics(place), batch)
        if self.states[place] is None:
            seen = None  # what comes behind waits for another reading
        elif seen is not None and isinstance(component, Shaper):
            seen = component.shape(seen, self.prepare(place, seen))
        for child in self.plan.children.get(place, ()):
            self._observe_from(child, raw, viewed, seen)

    def _can_read(self, place: int) -> bool:
        """Whether this reading of the data is one that the component at this place can be fitted on."""
        component = self.plan.components[place]
        above = self.plan.path(place)[:-1]
        unsolved = [self.plan.components[before] for before in above if self.states[before] is None]
        if component.keeps_rows:
            unsolved = [before for before in unsolved if before.own_pass]
        return component.fits_unshaped or not unsolved

    def _reading_statistics(self, place: int) -> dict[str, Any]:
        kept = self.statistics[place]
        if not self.refining:
            return kept
        return {
            name: statistic if (place, name) in self.refining else NullStatistic() for name, statistic in kept.items()
        }

    def begin_second_pass(self) -> bool:
        """Ask for a second reading of the same data where that makes statistics exact; they are ready for it now."""
        self.refining = {
            (place, name)
            for place, kept in enumerate(self.statistics)
            for name, statistic in kept.items()
            if place not in self.read_through and statistic.begin_second_pass()
        }
        if self.refining:
            self._end_holding_out()
            self.shown = 0
        return bool(self.refining)

    def merge(self, other: Fitting) -> None:
        """Take in what another one was shown in the same reading."""
        if (self.width, self.n_classes) != (other.width, other.n_classes):
            raise InputError(
                f"{other.width} features and {other.n_classes} classes there, {self.width} and {self.n_classes} here; "
                "both must come from the same network"
            )
        if not same_head(self.head, other.head):
            raise InputError("the heads differ; both must come from the same network")
        if (self.read_through, self.refining) != (other.read_through, other.refining):
            raise InputError(
                "one has ended a reading of the data that the other has not; merge all parts of a reading, "
                "finalize, then give copies of the result the parts of the next"
            )
        for place, (mine, theirs) in enumerate(zip(self.statistics, other.statistics, strict=True)):
            for name, statistic in mine.items():
                # others have been read through: both hold the same whole
                if (place, name) in self.refining if self.refining else place not in self.read_through:
                    statistic.merge(theirs[name])
        if self.held_out is not None and other.held_out is not None:
            self.held_out.merge(other.held_out)
        self.shown += other.shown

    def end_reading(self) -> None:
        """End a reading of the data: solve all that it was enough for."""
        self.read_through |= {place for place in range(len(self.plan.components)) if self._can_read(place)}
        self.refining = set()
        self.shown = 0
        self._end_holding_out()
        self.solve()
        if self.is_solved and self.held_out is not None:
            self._standardize_on_held_out(self.held_out)

    def _end_holding_out(self) -> None:
        if self.held_out is None:
            return
        self.held_out.complete = True
        if self.held_out.others == 0:
            raise InputError(
                f"{self.plan}: all inputs are among the tenth that is set aside to standardise its terms, because they "
                "are equal or very few; fit on more, or give held-out ones with fit(known, val=...)"
            )

    def solve(self) -> None:
        """Solve, in order, every component that has seen all it needs."""
        for place, component in enumerate(self.plan.components):
            statistics = self.statistics[self.plan.sources[place]]
            above = self.plan.path(place)[:-1]
            ready = place in self.read_through or not component.statistics()
            upstream = component.fits_unshaped or all(self.states[before] is not None for before in above)
            if self.states[place] is None and ready and upstream:
                context = Context(self.tensor_head("cpu"), partial(self.shape_before, place), self._fingerprint(above))
                with torch.no_grad():
                    state = component.solve(statistics, context)
                # as they will lie in memory after a file, so that products give the same bits
                self.states[place] = {name: tensor.contiguous() for name, tensor in state.items()}
        self.forget_statistics()

    def forget_statistics(self) -> None:
        """Drop the statistics that no component waits for any more."""
        waiting = {source for place, source in enumerate(self.plan.sources) if self.states[place] is None}
        self.statistics = [kept if place in waiting else {} for place, kept in enumerate(self.statistics)]

    def _fingerprint(self, above: tuple[int, ...]) -> str:
        """A short text that changes with any of these shapers or its state; empty when there are none."""
        states = {
            f"{at}|{self.plan.components[place]}|{name}": tensor
            for at, place in enumerate(above)
            for name, tensor in {"": torch.empty(0), **(self.states[place] or {})}.items()
        }
        return digest(states) if states else ""

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
        """Shape a batch as the component at this place reads it."""
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
        """Give each term's score as its method defines it, by the number of the term."""

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
        """The batch as the pass that a component of this branch asked for saw it."""
        for place in self.plan.passes[root]:
            state = self.states[place]
            assert state is not None
            batch = self.plan.components[place].view(batch, state)
        return batch

    def _standardize_on_held_out(self, held_out: HeldOut) -> None:
        batch = held_out.batch()
        if any(name not in batch.extras for name in self._extras()):
            self.held_out = HeldOut()  # only now is it known what to ask of the network: one more reading
            return
        with torch.no_grad():
            self._standardize([replace(batch, head=self.tensor_head("cpu"))])
        self.held_out = None

    def standardize(self, held_out: Activations, device: str | torch.device = "cpu") -> None:
        """Bring the terms of a sum to one scale by their scores on known inputs that were not fitted on."""
        with torch.no_grad():
            head, extras = self.tensor_head(device), self._extras()
            self._standardize(ActivationBatch.of(part, head, device, extras) for part in held_out.blocks())
        self.held_out = None

    def _standardize(self, batches: Iterable[ActivationBatch]) -> None:
        scores: list[list[Any]] = [[] for _ in self.plan.terms]
        for batch in batches:
            for number, values in self.score_terms(batch).items():
                scores[number].append(values.double().cpu().numpy())
        joined = [np.concatenate([np.empty(0), *parts]) for parts in scores]
        for term, found in zip(self.plan.terms, joined, strict=True):
            if np.isnan(found).any():
                raise InputError(f"{term.chain} gives no number for some held-out inputs; leave it out of the sum")
        combination = fit_combination(joined, self.plan.combine)
        constant = [
            term.chain for term, scale in zip(self.plan.terms, combination["scale"].tolist(), strict=True) if scale == 0
        ]
        if len(constant) == len(self.plan.terms):
            raise InputError(
                f"{self.plan}: none of its scores varies over the {len(joined[0])} held-out known inputs, so that they "
                "have no scale to be added on; fit on more inputs, or give held-out ones with fit(known, val=...)"
            )
        if constant:
            warnings.warn(
                f"{', '.join(constant)}: the same for all held-out known inputs, so there is no scale to add it on; "
                f"left out of {self.plan}",
                OffmapWarning,
                stacklevel=2,
            )
        self.combination = combination

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
        """Give what the component at this place scores or shapes with, on the batch's device; made once."""
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
