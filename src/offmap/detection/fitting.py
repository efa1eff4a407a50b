"""The machinery behind a detector: what its components have seen of the data, and what was solved from it.

Components wait for one another: a score that is fitted on shaped activations can only see them once the shapers before
it are solved. `Fitting` keeps track of who has seen what, so that one reading of the data is enough wherever it can be.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from offmap.activations import Activations, Head
from offmap.detection.base import Component, Context, Score, Shaper, State, digest
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.checks import same_head
from offmap.detection.statistics import NullStatistic
from offmap.errors import InputError, NotFittedError

Again = set[tuple[int, str]]  # place and name of statistics that read the data a second time


class Fitting:
    """Statistics and states of a row of components, for one network.

    Parameters
    ----------
    plan
        The components, with every ``auto`` decided.
    head
        The network's last linear layer, where it is known.
    width, n_classes
        How many features and logits an input has, where there are any.
    """

    def __init__(
        self,
        plan: tuple[Component, ...],
        head: Head | None = None,
        width: int | None = None,
        n_classes: int | None = None,
    ) -> None:
        self.plan = plan
        self.head, self.width, self.n_classes = head, width, n_classes
        self.statistics: list[dict[str, Any]] = [dict(component.statistics()) for component in plan]
        self.states: list[State | None] = [None for _ in plan]
        self.read_through: set[int] = set()  # components whose statistics have seen all the data
        self.shown = 0  # inputs in this reading of the data
        self._ready: dict[tuple[int, str], Any] = {}

    @classmethod
    def of(cls, plan: tuple[Component, ...], acts: Activations) -> Fitting:
        """A fresh one for the network that these activations come from."""
        width = acts.features.shape[1] if acts.has_features else None
        fitting = cls(plan, acts.head, width, acts.n_classes if acts.has_logits else None)
        fitting.solve()
        return fitting

    @property
    def is_done(self) -> bool:
        """Whether every component is solved."""
        return all(state is not None for state in self.states)

    def show(self, acts: Activations, device: str | torch.device = "cpu", again: Again | None = None) -> None:
        """Show a block to the statistics that can read it now; in a second reading to those that asked for it."""
        with torch.no_grad():
            self._observe(ActivationBatch.of(acts, self.tensor_head(device), device, tuple(acts.extras)), again)
        self.shown += len(acts)

    def _observe(self, raw: ActivationBatch, again: Again | None) -> None:
        viewed = raw
        for component, state in zip(self.plan[:-1], self.states, strict=False):
            viewed = viewed if state is None else component.view(viewed, state)
        seen: ActivationBatch | None = viewed
        for place, component in enumerate(self.plan):
            if self.statistics[place] and place not in self.read_through and self._can_read(place):
                fitting = raw if component.fits_unshaped else viewed if component.keeps_rows else seen
                assert fitting is not None
                component.observe(self._asking(place, again), fitting)
            if self.states[place] is None:
                seen = None  # what comes behind waits for another reading
            elif seen is not None and isinstance(component, Shaper):
                seen = component.shape(seen, self.prepared(place, seen))

    def _can_read(self, place: int) -> bool:
        """Whether this reading of the data is one that the component at this place can be fitted on."""
        component = self.plan[place]
        unsolved = [self.plan[before] for before in range(place) if self.states[before] is None]
        if component.keeps_rows:
            unsolved = [before for before in unsolved if before.own_pass]
        return component.fits_unshaped or not unsolved

    def _asking(self, place: int, again: Again | None) -> dict[str, Any]:
        kept = self.statistics[place]
        if again is None:
            return kept
        return {name: statistic if (place, name) in again else NullStatistic() for name, statistic in kept.items()}

    def begin_second_pass(self) -> Again:
        """The statistics that a second reading makes exact; they are ready for it now."""
        return {
            (place, name)
            for place, kept in enumerate(self.statistics)
            for name, statistic in kept.items()
            if place not in self.read_through and statistic.begin_second_pass()
        }

    def merge(self, other: Fitting) -> None:
        """Take in what another one was shown in the same reading."""
        if (self.width, self.n_classes) != (other.width, other.n_classes):
            raise InputError(
                f"{other.width} features and {other.n_classes} classes there, {self.width} and {self.n_classes} here; "
                "both must come from the same network"
            )
        if not same_head(self.head, other.head):
            raise InputError("the heads differ; both must come from the same network")
        if self.read_through != other.read_through:
            raise InputError(
                "one has ended a reading of the data that the other has not; merge all parts of a reading, "
                "finalize, then give copies of the result the parts of the next"
            )
        for place, (mine, theirs) in enumerate(zip(self.statistics, other.statistics, strict=True)):
            if place not in self.read_through:  # else both hold the same whole
                for name, statistic in mine.items():
                    statistic.merge(theirs[name])
        self.shown += other.shown

    def end_reading(self) -> None:
        """The data has been shown once: solve all that this was enough for."""
        self.read_through |= {place for place in range(len(self.plan)) if self._can_read(place)}
        self.solve()
        self.shown = 0

    def solve(self) -> None:
        """Solve, in order, every component that has seen all it needs."""
        for place, component in enumerate(self.plan):
            ready = place in self.read_through or not self.statistics[place]
            upstream = component.fits_unshaped or all(state is not None for state in self.states[:place])
            if self.states[place] is None and ready and upstream:
                shape = partial(self.shaped, stop=place)
                context = Context(self.tensor_head("cpu"), shape, self._fingerprint(place))
                with torch.no_grad():
                    state = component.solve(self.statistics[place], context)
                # as they will lie in memory after a file, so that products give the same bits
                self.states[place] = {name: tensor.contiguous() for name, tensor in state.items()}
                self.statistics[place] = {}

    def _fingerprint(self, place: int) -> str:
        """A short text that changes with any shaper before this place or its state; empty when there are none."""
        before = zip(self.plan[:place], self.states, strict=False)
        states = {
            f"{at}|{shaper}|{name}": tensor
            for at, (shaper, state) in enumerate(before)
            for name, tensor in {"": torch.empty(0), **(state or {})}.items()
        }
        return digest(states) if states else ""

    def viewed(self, block: ActivationBatch) -> ActivationBatch:
        """The block as the pass that a component asked for saw it."""
        for component, state in zip(self.plan, self.states, strict=True):
            assert state is not None
            block = component.view(block, state)
        return block

    def shaped(self, block: ActivationBatch, stop: int | None = None) -> ActivationBatch:
        """The block after the shapers before `stop`, or after all of them."""
        for place, component in enumerate(self.plan[:stop]):
            if isinstance(component, Shaper):
                block = component.shape(block, self.prepared(place, block))
        return block

    def scored(self, block: ActivationBatch) -> torch.Tensor:
        """One number per input."""
        score = self.plan[-1]
        assert isinstance(score, Score)
        shaped = self.shaped(self.viewed(block))
        return score.score(shaped, self.prepared(len(self.plan) - 1, shaped))

    def prepared(self, place: int, block: ActivationBatch) -> Any:
        """What the component at this place scores or shapes with, on the block's device; made once."""
        state = self.states[place]
        if state is None:
            raise NotFittedError(f"{self.plan[place]} is not fitted yet")
        key = (place, str(block.device))
        if key not in self._ready:
            on_device = {name: tensor.to(block.device) for name, tensor in state.items()}
            self._ready[key] = self.plan[place].prepare(on_device)
        return self._ready[key]

    def tensor_head(self, device: str | torch.device) -> TensorHead | None:
        """The network's head on a device; made once."""
        if self.head is None:
            return None
        key = (-1, str(device))
        if key not in self._ready:
            self._ready[key] = TensorHead.of(self.head, device)
        head: TensorHead = self._ready[key]
        return head
