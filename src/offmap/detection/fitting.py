"""`Fitting`: what the components of a detector have seen of the data, and what was solved from it.

Components wait for one another: a score that is fitted on shaped activations can only see them once the shapers before
it are solved, and the terms of a sum are standardised once all of them are. `Fitting` keeps track of who has seen what,
so that one reading of the data is enough wherever it can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from offmap.activations import Activations, Head
from offmap.detection.base import Context, Shaper, digest
from offmap.detection.batch import ActivationBatch
from offmap.detection.checks import same_head
from offmap.detection.combination import standardize_terms
from offmap.detection.holdout import HeldOut
from offmap.detection.plan_states import PlanStates
from offmap.detection.statistics import NullStatistic
from offmap.detection.terms import Plan
from offmap.errors import InputError


class Fitting(PlanStates):
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
        super().__init__(plan, head)
        self.width, self.n_classes = width, n_classes
        self.statistics: list[dict[str, Any]] = [
            dict(component.statistics()) if plan.sources[place] == place else {}
            for place, component in enumerate(plan.components)
        ]
        self.read_through: set[int] = set()  # components whose statistics have seen all the data
        self.refining: set[tuple[int, str]] = set()  # statistics that read the data a second time now
        self.shown = 0  # inputs in this reading of the data
        self.extra_shapes: dict[str, tuple[int, ...]] = {}  # of one input, for each extra that was ever shown
        self.held_out = HeldOut() if plan.is_sum and hold_out else None

    @classmethod
    def of(cls, plan: Plan, acts: Activations, hold_out: bool = True) -> Fitting:
        """Start a fitting for the network that these activations come from.

        Parameters
        ----------
        plan : Plan
            The terms, with every ``auto`` decided.
        acts : Activations
            They show the head, the width and the number of classes.
        hold_out : bool, default=True
            Whether a share of the inputs is set aside to standardise the terms of a sum.

        Returns
        -------
        Fitting
            With nothing seen yet.
        """
        width = acts.features.shape[1] if acts.has_features else None
        fitting = cls(plan, acts.head, width, acts.n_classes if acts.has_logits else None, hold_out)
        fitting.solve()
        return fitting

    @property
    def needs_reading(self) -> bool:
        """Whether the data must be read, or read once more."""
        return not self.is_solved or self.held_out is not None

    @property
    def is_done(self) -> bool:
        """Whether it can score."""
        return self.is_solved and (not self.plan.is_sum or self.combination is not None)

    def show(self, acts: Activations, device: str | torch.device = "cpu") -> None:
        """Add a batch to the statistics that can read it now; in a second pass to those that asked for it.

        Parameters
        ----------
        acts : Activations
            Some of the known inputs.
        device : str or torch.device, default="cpu"
            Where to compute.
        """
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
        self.extra_shapes |= {name: value.shape[1:] for name, value in acts.extras.items()}

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
        """Return whether this reading of the data is one that the component at this place can be fitted on."""
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
        self.extra_shapes |= other.extra_shapes

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
        """Return a short text that changes with any of these shapers or its state; empty when there are none."""
        states = {
            f"{at}|{self.plan.components[place]}|{name}": tensor
            for at, place in enumerate(above)
            for name, tensor in {"": torch.empty(0), **(self.states[place] or {})}.items()
        }
        return digest(states) if states else ""

    def _standardize_on_held_out(self, held_out: HeldOut) -> None:
        batch = held_out.batch()
        if any(name not in batch.extras for name in self._extras()):
            self.held_out = HeldOut()  # only now is it known what to ask of the network: one more reading
            return
        with torch.no_grad():
            self._standardize([replace(batch, head=self.tensor_head("cpu"))])
        self.held_out = None

    def standardize(self, held_out: Activations, device: str | torch.device = "cpu") -> None:
        """Bring the terms of a sum to one scale by their scores on known inputs that were not fitted on.

        Parameters
        ----------
        held_out : Activations
            Known inputs.
        device : str or torch.device, default="cpu"
            Where to compute.
        """
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
        chains = [term.chain for term in self.plan.terms]
        self.combination = standardize_terms(joined, chains, self.plan.combine, repr(self.plan))
