"""`Detector`: shapers and one score in a row, fitted on known inputs, with a threshold. What users hold."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from offmap import store
from offmap.activations import Activations, Array, Head
from offmap.detection import files
from offmap.detection.base import AUTO, Component, State
from offmap.detection.batch import ActivationBatch
from offmap.detection.calibration import Calibration, Verdicts
from offmap.detection.checks import check_input, check_order, required
from offmap.detection.fitting import Fitting
from offmap.detection.spec import parse
from offmap.errors import InputError, MissingError, NotFittedError, StoreError
from offmap.extra_passes import Request, Requirements

KIND = "detector"


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
        self.plan = self.components  # the same, with every `auto` decided
        self.fitting: Fitting | None = None  # once it has seen anything
        self.calibration: Calibration | None = None
        self.trials: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return "|".join(map(repr, self.components))

    @property
    def chosen(self) -> str:
        """The text form with every ``auto`` replaced by what was chosen."""
        return "|".join(map(repr, self.plan))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters, named ``component__parameter``; of a method used twice, ``react-1__…`` and ``react-2__…``."""
        names = [component.name for component in self.components]
        return {
            f"{name}-{names[: place + 1].count(name)}__{field}" if names.count(name) > 1 else f"{name}__{field}": value
            for place, (name, component) in enumerate(zip(names, self.components, strict=True))
            for field, value in asdict(component).items()
        }

    @property
    def states(self) -> list[State | None]:
        """The fitted tensors of each component; `None` for one that is not fitted yet."""
        return [None for _ in self.plan] if self.fitting is None else self.fitting.states

    @property
    def head(self) -> Head | None:
        """The head of the network that it was fitted on."""
        return None if self.fitting is None else self.fitting.head

    @property
    def n_classes(self) -> int | None:
        """How many classes that network knows."""
        return None if self.fitting is None else self.fitting.n_classes

    @property
    def requirements(self) -> Requirements:
        """What it reads: for fitting before it is fitted, for scoring afterwards. Pass it to `Network.extract`."""
        wanted = required(self.plan, fitting=not self.is_fitted)
        # With nothing to fit, a score can ask for its pass at once; behind shapers it needs the head that fit() brings.
        if self.fitting is None and not self._fits and len(self.plan) == 1:
            return Detector(self.plan).finalize().requirements
        requests: list[Request] = []
        solved = True  # so far: what stands behind a component that is not cannot say yet what it will ask for
        for place, (component, state) in enumerate(zip(self.plan, self.states, strict=True)):
            solved = solved and state is not None
            requests += component.requests(state if solved else None, partial(self._shaped_with_head, stop=place))
        own = Requirements(
            "features" in wanted, "logits" in wanted, "head" in wanted, "labels" in wanted, tuple(requests)
        )
        return own | Requirements()

    def _shaped_with_head(self, block: ActivationBatch, stop: int) -> ActivationBatch:
        fitting = self._fitted()
        return fitting.shaped(replace(block, head=block.head or fitting.tensor_head(block.device)), stop)

    @property
    def _fits(self) -> bool:
        """Whether anything must be given before scoring, be it only the head."""
        return any(component.fits for component in self.plan)

    @property
    def _learns(self) -> bool:
        """Whether anything is learnt from inputs."""
        return any(component.statistics() for component in self.plan)

    @property
    def _has_auto(self) -> bool:
        return any(AUTO in asdict(component).values() for component in self.plan)

    @property
    def is_fitted(self) -> bool:
        """Whether it can score."""
        return self.fitting is not None and self.fitting.is_done

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
        self.__dict__.update(Detector(self.components).__dict__)
        if self._has_auto:
            if val is None or outliers is None:
                raise InputError(_needs_validation(self))
            from offmap.detection.selection import choose

            self.plan, self.trials = choose(
                self.components, acts, as_activations(val), as_activations(outliers), device
            )
        fitting = self._begin(acts)
        while not fitting.is_done:
            for part in acts.blocks():
                fitting.show(part, device)
            if again := fitting.begin_second_pass():
                for part in acts.blocks():
                    fitting.show(part, device, again)
            fitting.end_reading()
        return self

    def _begin(self, acts: Activations) -> Fitting:
        self._check_input(acts, fitting=True)
        self.fitting = Fitting.of(self.plan, acts)
        return self.fitting

    def update(self, block: Any, device: str | torch.device = "cpu") -> Self:
        """Show it a block of known inputs; call `finalize` after the last one.

        A detector whose score is fitted on what a fitted shaper makes of the data, such as ``react(90)|mahalanobis``,
        is not fitted after that (see `is_fitted`): show it all blocks once more and finalize again.
        """
        acts = as_activations(block)
        if self.plan is self.components and self._has_auto:
            raise InputError(_needs_validation(self))
        if len(acts) == 0:
            return self
        if self.is_fitted and self._learns:
            raise InputError(f"{self}: already finalized; start anew with offmap.detector('{self}')")
        fitting = self._begin(acts) if self.fitting is None else self.fitting
        self._check_input(acts, fitting=True)
        fitting.show(acts, device)
        return self

    def merge(self, other: Detector) -> Self:
        """Take in what another detector of the same kind was shown, as if it had been shown here."""
        if other.plan != self.plan:
            raise InputError(f"{other.chosen} cannot be merged into {self.chosen}: both must have the same text form")
        if self.is_fitted or other.is_fitted:
            if self._learns:
                raise InputError("merge before finalize: a fitted detector no longer has its statistics")
        elif self.fitting is None:
            self.fitting = copy.deepcopy(other.fitting)
        elif other.fitting is not None:
            self.fitting.merge(other.fitting)
        return self

    def finalize(self) -> Self:
        """End a reading of the data: solve all that it was enough for."""
        if self._fits and not self.is_fitted and (self.fitting is None or not self.fitting.shown):
            raise NotFittedError(f"{self}: nothing was seen; call update(block) before finalize()")
        self.fitting = self.fitting or Fitting(self.plan)
        self.fitting.end_reading()
        return self

    def score(self, acts: Any, device: str | torch.device = "cpu") -> Array:
        """How well each input is known: one number per input, higher = known.

        Parameters
        ----------
        acts
            Activations (or an array of features).
        device
            Where to compute.
        """
        inputs, fitting = as_activations(acts), self._fitted()
        extras = tuple(name for request in self.requirements.extras for name in request.outputs)
        found = [fitting.scored(block).double().cpu().numpy() for block in self._blocks(inputs, device, extras)]
        scores: Array = np.concatenate([np.empty(0), *found])
        if np.isnan(scores).any():
            row = int(np.flatnonzero(np.isnan(scores))[0])
            raise InputError(
                f"{self}: input {row} gives no number; its activations are too large for float32, check the network"
            )
        return scores

    score_samples = score

    def predict_classes(self, acts: Any, device: str | torch.device = "cpu") -> Array:
        """The class with the largest logit after shaping: what the network would answer if it were shaped too."""
        inputs, fitting = as_activations(acts), self._fitted()
        found = [fitting.shaped(block).logits.argmax(dim=1).cpu().numpy() for block in self._blocks(inputs, device)]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def _blocks(
        self, acts: Activations, device: str | torch.device, extras: tuple[str, ...] = ()
    ) -> Iterator[ActivationBatch]:
        self._check_input(acts, fitting=False)
        head = self._fitted().tensor_head(device)
        with torch.no_grad():
            for part in acts.blocks():
                yield ActivationBatch.of(part, head, device, extras)

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
        fitting, calibration = self.fitting, self.calibration
        config = {
            "spec": repr(self),
            "chosen": self.chosen,
            "trials": self.trials,
            "fitting": None if fitting is None else files.fitting_config(fitting),
            "tpr": None if calibration is None else calibration.tpr,
        }
        tensors = {} if fitting is None else files.fitting_tensors(fitting)
        store.save(path, KIND, config, tensors | files.calibration_tensors(calibration))

    @classmethod
    def restore(cls, stored: store.Stored) -> Detector:
        """The detector in a file that `offmap.load` has read."""
        config = stored.config
        try:
            detector = cls(parse(config["spec"]))
            detector.plan, detector.trials = parse(config["chosen"]), config["trials"]
            if config["fitting"] is not None:
                detector.fitting = files.restored_fitting(detector.plan, stored)
            detector.calibration = files.restored_calibration(config["tpr"], stored)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise StoreError(f"not a whole detector of this version of offmap ({error!r})") from error
        return detector

    def _fitted(self) -> Fitting:
        if self.fitting is None:
            raise NotFittedError(f"{self}: not fitted; call fit() first")
        if not self.fitting.is_done:
            again = (
                "read the data once more with update() and finalize()" if self.fitting.read_through else "call fit()"
            )
            raise NotFittedError(f"{self}: not fitted; {again}")
        return self.fitting

    def _check_input(self, acts: Activations, fitting: bool) -> None:
        check_input(self.plan, acts, self.head, fitting)
        if self.fitting is None:
            return
        width, n_classes = self.fitting.width, self.fitting.n_classes
        if width is not None and acts.has_features and acts.features.shape[1] != width:
            raise InputError(f"{acts.features.shape[1]} features per input; {self} was fitted on {width}")
        if n_classes is not None and acts.has_logits and acts.n_classes != n_classes:
            raise InputError(f"{acts.n_classes} logits per input; {self} was fitted on {n_classes}")


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


def _needs_validation(detector: Detector) -> str:
    return (
        f"{detector}: auto is chosen on validation data only; call "
        "fit(known, val=held_out_known, outliers=net.noise(1000, shape)), or give a value"
    )
