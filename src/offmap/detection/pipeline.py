"""`Detector`: shapers and one score in a row, with their fitted state. Fitting, streaming, merging, saving live here,
once for all methods.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from offmap import store
from offmap.activations import Activations, Array, Head
from offmap.detection.base import AUTO, Component, Context, Score, Shaper, State, digest
from offmap.detection.block import Block, TensorHead
from offmap.detection.calibrate import Calibration, Verdicts
from offmap.detection.checks import check_input, check_order, required, same_head
from offmap.detection.grammar import parse
from offmap.detection.statistics import Deaf
from offmap.errors import InputError, MissingError, NotFittedError, StoreError
from offmap.requests import Needs, Request

KIND = "detector"

Again = set[tuple[int, str]]  # place and name of statistics that read the data a second time


class Detector:
    """Says how well an input is known: shapers, then one score, fitted on activations of known inputs.

    Made by `offmap.detector("react(90)|energy")` or by composing classes: ``ReAct(90) | Energy()``.

    Parameters
    ----------
    components
        Any number of shapers, then one score.

    Examples
    --------
    >>> import numpy as np, offmap
    >>> rng = np.random.default_rng(0)
    >>> head = offmap.Head(np.eye(4))
    >>> known = offmap.Activations(rng.random((200, 4)) + 3 * np.eye(4)[np.arange(200) % 4], head=head)
    >>> guard = offmap.detector("react(90)|energy").fit(known[:100]).calibrate(known[100:], tpr=0.9)
    >>> strange = offmap.Activations(np.full((1, 4), 0.1))
    >>> guard(strange).known
    array([False])
    """

    def __init__(self, components: Sequence[Component]) -> None:
        self.components = tuple(components)
        check_order(self.components)
        self._plan = self.components  # the same, with every `auto` decided
        self._statistics: list[dict[str, Any]] = []  # per component; emptied when solved
        self._states: list[State | None] = []  # per component; None until solved
        self._read_through: set[int] = set()  # components whose statistics have seen all the data
        self._shown = 0  # inputs in this reading of the data
        self._ready: dict[tuple[int, str], Any] = {}
        self.head: Head | None = None
        self.width: int | None = None
        self.n_classes: int | None = None
        self.calibration: Calibration | None = None
        self.trials: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return "|".join(map(repr, self.components))

    @property
    def chosen(self) -> str:
        """The text form with every ``auto`` replaced by what was chosen."""
        return "|".join(map(repr, self._plan))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters, named ``component__parameter``; of a method used twice, ``react-1__…`` and ``react-2__…``."""
        names = [component.name for component in self.components]
        return {
            f"{name}-{names[: place + 1].count(name)}__{field}" if names.count(name) > 1 else f"{name}__{field}": value
            for place, (name, component) in enumerate(zip(names, self.components, strict=True))
            for field, value in asdict(component).items()
        }

    @property
    def needs(self) -> Needs:
        """What it reads: for fitting before it is fitted, for scoring afterwards. Pass it to `Network.extract`."""
        wanted = required(self._plan, fitting=not self.is_fitted)
        # With nothing to fit, a score can ask for its pass at once; behind shapers it needs the head that fit() brings.
        if not self._states and not self._fits and len(self._plan) == 1:
            return Detector(self._plan).finalize().needs
        requests: list[Request] = []
        solved = True  # so far: what stands behind a component that is not cannot say yet what it will ask for
        for place, component in enumerate(self._plan):
            state = self._states[place] if self._states else None
            solved = solved and state is not None
            requests += component.requests(state if solved else None, partial(self._shaped_with_head, stop=place))
        own = Needs("features" in wanted, "logits" in wanted, "head" in wanted, "labels" in wanted, tuple(requests))
        return own | Needs()

    @property
    def _fits(self) -> bool:
        """Whether anything must be given before scoring, be it only the head."""
        return any(component.fits for component in self._plan)

    @property
    def _learns(self) -> bool:
        """Whether anything is learnt from inputs."""
        return any(component.statistics() for component in self._plan)

    @property
    def is_fitted(self) -> bool:
        """Whether it can score."""
        return bool(self._states) and all(state is not None for state in self._states)

    def fit(self, known: Any, val: Any = None, outliers: Any = None, device: str | torch.device = "cpu") -> Self:
        """Fit on activations of known inputs, reading them in blocks, as often as exactness takes.

        Parameters
        ----------
        known
            Activations of inputs that the network was trained on (or an array of features).
        val, outliers
            Activations of held-out known inputs and of outliers, such as noise (`Network.noise`), on which parameters
            given as ``auto`` are chosen; never the inputs you report on.
        device
            Where to compute.
        """
        acts = as_activations(known)
        if len(acts) == 0:
            raise InputError(f"{self}.fit: no inputs; fit on at least one")
        self._forget()
        if self._has_auto:
            if val is None or outliers is None:
                raise InputError(_needs_validation(self))
            from offmap.detection.search import choose

            self._plan, self.trials = choose(
                self.components, acts, as_activations(val), as_activations(outliers), device
            )
        self._begin(acts)
        while not self.is_fitted:
            self._read(acts, device)
            if again := self._narrowed():
                self._read(acts, device, again)
            self.finalize()
        return self

    def _narrowed(self) -> Again:
        """The statistics that a second reading makes exact."""
        return {
            (place, name)
            for place, kept in enumerate(self._statistics)
            for name, statistic in kept.items()
            if place not in self._read_through and statistic.narrow()
        }

    def _forget(self) -> None:
        fresh = Detector(self.components)
        self.__dict__.update(fresh.__dict__)

    def _begin(self, acts: Activations) -> None:
        self._check_input(acts, fitting=True)
        self.head = acts.head
        self.width = acts.features.shape[1] if acts.has_features else None
        self.n_classes = acts.n_classes if acts.has_logits else None
        self._statistics = [dict(component.statistics()) for component in self._plan]
        self._states = [None] * len(self._plan)
        self._solve()

    def _read(self, acts: Activations, device: str | torch.device, again: Again | None = None) -> None:
        for part in acts.blocks():
            self._show(part, device, again)

    def update(self, block: Any, device: str | torch.device = "cpu") -> Self:
        """Show it a block of known inputs; call `finalize` after the last one.

        A detector whose score is fitted on what a fitted shaper makes of the data, such as ``react(90)|mahalanobis``,
        is not fitted after that (see `is_fitted`): show it all blocks once more and finalize again.
        """
        acts = as_activations(block)
        if self._plan is self.components and self._has_auto:
            raise InputError(_needs_validation(self))
        if len(acts) == 0:
            return self
        if not self._states:
            self._begin(acts)
        elif self.is_fitted and self._learns:
            raise InputError(f"{self}: already finalized; start anew with offmap.detector('{self}')")
        self._show(acts, device)
        return self

    def _show(self, acts: Activations, device: str | torch.device, again: Again | None = None) -> None:
        self._check_input(acts, fitting=True)
        with torch.no_grad():
            self._observe(Block.of(acts, self._tensor_head(device), device, tuple(acts.extras)), again)
        self._shown += len(acts)

    def _observe(self, raw: Block, again: Again | None) -> None:
        viewed = raw
        for component, state in zip(self._plan[:-1], self._states, strict=False):
            viewed = viewed if state is None else component.view(viewed, state)
        seen: Block | None = viewed
        for place, component in enumerate(self._plan):
            if self._statistics[place] and place not in self._read_through and self._can_read(place):
                fitting = raw if component.fits_unshaped else viewed if component.keeps_rows else seen
                assert fitting is not None
                component.observe(self._asking(place, again), fitting)
            if self._states[place] is None:
                seen = None  # what comes behind waits for another reading
            elif seen is not None and isinstance(component, Shaper):
                seen = component.shape(seen, self._prepared(place, seen))

    def _can_read(self, place: int) -> bool:
        """Whether this reading of the data is one that the component at this place can be fitted on."""
        component = self._plan[place]
        unsolved = [self._plan[before] for before in range(place) if self._states[before] is None]
        if component.keeps_rows:
            unsolved = [before for before in unsolved if before.own_pass]
        return component.fits_unshaped or not unsolved

    def _asking(self, place: int, again: Again | None) -> dict[str, Any]:
        """The statistics to show data to: all of them, or in a second reading those that asked for it."""
        kept = self._statistics[place]
        if again is None:
            return kept
        return {name: statistic if (place, name) in again else Deaf() for name, statistic in kept.items()}

    def merge(self, other: Detector) -> Self:
        """Take in what another detector of the same kind was shown, as if it had been shown here."""
        if other._plan != self._plan:
            raise InputError(f"{other.chosen} cannot be merged into {self.chosen}: both must have the same text form")
        if self.is_fitted or other.is_fitted:
            if self._learns:
                raise InputError("merge before finalize: a fitted detector no longer has its statistics")
            return self
        if not other._states:
            return self
        if not self._states:
            self.__dict__.update(other._copy().__dict__)
            return self
        if (self.width, self.n_classes) != (other.width, other.n_classes):
            raise InputError(
                f"{other.width} features and {other.n_classes} classes there, {self.width} and {self.n_classes} here; "
                "both must come from the same network"
            )
        if not same_head(self.head, other.head):
            raise InputError("the heads differ; both must come from the same network")
        if self._read_through != other._read_through:
            raise InputError(
                f"{self}: one has ended a reading of the data that the other has not; merge all parts of a reading, "
                "finalize, then give copies of the result the parts of the next"
            )
        for place, (mine, theirs) in enumerate(zip(self._statistics, other._statistics, strict=True)):
            if place not in self._read_through:  # else both hold the same whole
                for name, statistic in mine.items():
                    statistic.merge(theirs[name])
        self._shown += other._shown
        return self

    def finalize(self) -> Self:
        """End a reading of the data: solve all that it was enough for."""
        if self._fits and not self.is_fitted and not self._shown:
            raise NotFittedError(f"{self}: nothing was seen; call update(block) before finalize()")
        if not self._states:
            self._statistics, self._states = [{} for _ in self._plan], [None for _ in self._plan]
        self._read_through |= {place for place in range(len(self._plan)) if self._can_read(place)}
        self._solve()
        self._shown = 0
        return self

    def _solve(self) -> None:
        """Solve, in order, every component that has seen all it needs."""
        for place, component in enumerate(self._plan):
            ready = place in self._read_through or not self._statistics[place]
            upstream = component.fits_unshaped or all(state is not None for state in self._states[:place])
            if self._states[place] is None and ready and upstream:
                shape = partial(self._shaped, stop=place)
                context = Context(self._tensor_head("cpu"), shape, self._fingerprint(place))
                with torch.no_grad():
                    state = component.solve(self._statistics[place], context)
                # as they will lie in memory after a file, so that products give the same bits
                self._states[place] = {name: tensor.contiguous() for name, tensor in state.items()}
                self._statistics[place] = {}

    def _fingerprint(self, place: int) -> str:
        """A short text that changes with any shaper before this place or its state; empty when there are none."""
        before = zip(self._plan[:place], self._states, strict=False)
        states = {
            f"{at}|{shaper}|{name}": tensor
            for at, (shaper, state) in enumerate(before)
            for name, tensor in {"": torch.empty(0), **(state or {})}.items()
        }
        return digest(states) if states else ""

    def score(self, acts: Any, device: str | torch.device = "cpu") -> Array:
        """How well each input is known: one number per input, higher = known.

        Parameters
        ----------
        acts
            Activations (or an array of features).
        device
            Where to compute.
        """
        inputs = as_activations(acts)
        self._check_input(inputs, fitting=False)
        scores = np.empty(len(inputs), dtype=np.float64)
        extras = tuple(name for request in self.needs.extras for name in request.outputs)
        done = 0
        with torch.no_grad():
            for part in inputs.blocks():
                block = Block.of(part, self._tensor_head(device), device, extras)
                scores[done : done + len(part)] = self._score(block).double().cpu().numpy()
                done += len(part)
        if np.isnan(scores).any():
            row = int(np.flatnonzero(np.isnan(scores))[0])
            raise InputError(
                f"{self}: input {row} gives no number; its activations are too large for float32, check the network"
            )
        return scores

    score_samples = score

    def _score(self, block: Block) -> torch.Tensor:
        score = self._plan[-1]
        assert isinstance(score, Score)
        for place, component in enumerate(self._plan):
            state = self._states[place]
            assert state is not None
            block = component.view(block, state)
        shaped = self._shaped(block, stop=len(self._plan) - 1)
        return score.score(shaped, self._prepared(len(self._plan) - 1, shaped))

    def _shaped(self, block: Block, stop: int) -> Block:
        for place, component in enumerate(self._plan[:stop]):
            if isinstance(component, Shaper):
                block = component.shape(block, self._prepared(place, block))
        return block

    def predict_classes(self, acts: Any, device: str | torch.device = "cpu") -> Array:
        """The class with the largest logit after shaping: what the network would answer if it were shaped too."""
        inputs = as_activations(acts)
        self._check_input(inputs, fitting=False)
        found = [np.empty(0, dtype=np.int64)]
        with torch.no_grad():
            for part in inputs.blocks():
                block = self._shaped(Block.of(part, self._tensor_head(device), device), stop=len(self._plan) - 1)
                found.append(block.logits.argmax(dim=1).cpu().numpy())
        return np.concatenate(found)

    def _shaped_with_head(self, block: Block, stop: int) -> Block:
        return self._shaped(replace(block, head=block.head or self._tensor_head(block.device)), stop)

    def calibrate(
        self, id_acts: Any, tpr: float = 0.95, by_class: bool = False, device: str | torch.device = "cpu"
    ) -> Self:
        """Set the threshold on held-out known inputs, with a guarantee.

        For known inputs exchangeable with these, the chance of a false alarm is at most ``1 - tpr``.

        Parameters
        ----------
        id_acts
            Activations of known inputs that were not used for fitting.
        tpr
            The share of known inputs to accept.
        by_class
            Keep the promise within every predicted class, not only on average (Mondrian).
        device
            Where to compute.
        """
        acts = as_activations(id_acts)
        classes = self._predicted(acts) if by_class else None
        self.calibration = Calibration.of(self.score(acts, device), tpr, classes, self.n_classes)
        return self

    @property
    def threshold(self) -> float:
        """The score from which an input counts as known."""
        return self._calibrated().threshold

    def verdicts(self, acts: Any, fdr: float | None = None, device: str | torch.device = "cpu") -> Verdicts:
        """Score, p-value and known or unknown for each input.

        Parameters
        ----------
        acts
            Activations (or an array of features).
        fdr
            For a batch judged together: keep the share of known inputs among those flagged at most this
            (Benjamini-Hochberg), instead of the threshold.
        device
            Where to compute.
        """
        calibration = self._calibrated()
        inputs = as_activations(acts)
        with_head = inputs.has_logits or (self.head is not None and inputs.has_features)
        classes = self._predicted(inputs) if with_head else None
        return calibration.verdicts(self.score(inputs, device), classes, fdr)

    __call__ = verdicts

    def predict(self, acts: Any) -> Array:
        """1 for known, -1 for unknown, as scikit-learn's outlier detectors say it."""
        return np.where(self.verdicts(acts).known, 1, -1)

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise NotFittedError(f"{self}: no threshold yet; call calibrate(held_out_known, tpr=0.95) first")
        return self.calibration

    def _predicted(self, acts: Activations) -> Array:
        if acts.has_logits:
            return acts.predictions
        if self.head is None:
            raise MissingError(f"{self}: classes are needed; pass logits=... or head=... to Activations")
        return Activations(acts.features, head=self.head).predictions

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safe file: parameters, fitted tensors, threshold. `offmap.load` gives the detector back.

        A detector that is still being shown data is saved with its statistics, to be merged elsewhere.
        """
        tensors: dict[str, Array] = {}
        for place, (state, statistics) in enumerate(zip(self._states, self._statistics, strict=True)):
            for name, tensor in (state or {}).items():
                tensors[f"{place}/state/{name}"] = tensor.detach().cpu().numpy()
            for name, statistic in statistics.items():
                for part, array in statistic.state().items():
                    tensors[f"{place}/statistic/{name}/{part}"] = array
        if self.head is not None:
            tensors |= {"head/weight": self.head.weight, "head/bias": self.head.bias}
        if self.calibration is not None:
            tensors |= {f"calibration/{name}": array for name, array in self.calibration.arrays().items()}
        config = {
            "spec": repr(self),
            "chosen": self.chosen,
            "solved": [state is not None for state in self._states],
            "read_through": sorted(self._read_through),
            "shown": self._shown,
            "width": self.width,
            "n_classes": self.n_classes,
            "trials": self.trials,
            "tpr": None if self.calibration is None else self.calibration.tpr,
        }
        store.save(path, KIND, config, tensors)

    @classmethod
    def restore(cls, stored: store.Stored) -> Detector:
        """The detector in a file that `offmap.load` has read."""
        try:
            return cls._restored(stored)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise StoreError(f"not a whole detector of this version of offmap ({error!r})") from error

    @classmethod
    def _restored(cls, stored: store.Stored) -> Detector:
        config, tensors = stored.config, stored.tensors
        detector = cls(parse(config["spec"]))
        detector._plan = parse(config["chosen"])
        detector.width, detector.n_classes, detector.trials = config["width"], config["n_classes"], config["trials"]
        detector._read_through, detector._shown = set(config["read_through"]), config["shown"]
        for place, solved in enumerate(config["solved"]):
            state = _below(f"{place}/state/", tensors)
            detector._states.append(
                {name: torch.from_numpy(np.array(array)) for name, array in state.items()} if solved else None
            )
            statistics = {} if solved else dict(detector._plan[place].statistics())
            for name, statistic in statistics.items():
                statistic.restore(_below(f"{place}/statistic/{name}/", tensors))
            detector._statistics.append(statistics)
        if "head/weight" in tensors:
            detector.head = Head(tensors["head/weight"], tensors["head/bias"])
        if config["tpr"] is not None:
            detector.calibration = Calibration(tpr=config["tpr"], **_below("calibration/", tensors))
        if len(detector._states) not in (0, len(detector._plan)):
            raise StoreError(f"{config['spec']}: the saved state does not belong to this detector")
        return detector

    def _copy(self) -> Detector:
        import copy

        return copy.deepcopy(self)

    @property
    def _has_auto(self) -> bool:
        return any(AUTO in asdict(component).values() for component in self._plan)

    def _tensor_head(self, device: str | torch.device) -> TensorHead | None:
        if self.head is None:
            return None
        key = (-1, str(device))
        if key not in self._ready:
            self._ready[key] = TensorHead.of(self.head, device)
        head: TensorHead = self._ready[key]
        return head

    def _prepared(self, place: int, block: Block) -> Any:
        state = self._states[place]
        if state is None:
            raise NotFittedError(f"{self}: {self._plan[place]} is not fitted yet")
        key = (place, str(block.device))
        if key not in self._ready:
            on_device = {name: tensor.to(block.device) for name, tensor in state.items()}
            self._ready[key] = self._plan[place].prepare(on_device)
        return self._ready[key]

    def _check_input(self, acts: Activations, fitting: bool) -> None:
        if not fitting and not self.is_fitted:
            half = "read the data once more with update() and finalize()" if self._read_through else "call fit() first"
            raise NotFittedError(f"{self}: not fitted; {half}")
        check_input(self._plan, acts, self.head, fitting)
        if self.width is not None and acts.has_features and acts.features.shape[1] != self.width:
            raise InputError(f"{acts.features.shape[1]} features per input; {self} was fitted on {self.width}")
        if self.n_classes is not None and acts.has_logits and acts.n_classes != self.n_classes:
            raise InputError(f"{acts.n_classes} logits per input; {self} was fitted on {self.n_classes}")


def detector(spec: str | Component | Detector) -> Detector:
    """A detector from its text form, or from one score.

    Examples
    --------
    >>> detector("react(90)|dice(0.7)|energy(1.0)")
    react(90)|dice(0.7)|energy
    """
    if isinstance(spec, Detector):
        return Detector(spec.components)
    return Detector(parse(spec) if isinstance(spec, str) else (spec,))


def as_activations(values: Any) -> Activations:
    """Activations as they are; an array becomes activations with these features."""
    return values if isinstance(values, Activations) else Activations(values)


def _below(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def _needs_validation(detector: Detector) -> str:
    return (
        f"{detector}: auto is chosen on validation data only; call "
        "fit(known, val=held_out_known, outliers=net.noise(1000, shape)), or give a value"
    )
