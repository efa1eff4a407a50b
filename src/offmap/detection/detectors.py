"""`Detector`: shapers and a score, or a sum of such, fitted on known inputs, with a threshold. What users hold."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np
import torch

from offmap import store
from offmap.activations import Activations, Head
from offmap.detection import files
from offmap.detection.auto import Auto, Trials, choose_sum
from offmap.detection.base import AUTO, Component, Score, State
from offmap.detection.batch import ActivationBatch
from offmap.detection.calibration import Calibration, Verdicts
from offmap.detection.checks import check_chain, check_input, required
from offmap.detection.fitting import Fitting
from offmap.detection.spec import parse
from offmap.detection.terms import Plan, Term
from offmap.errors import InputError, MissingError, NotFittedError, OffmapWarning, StoreError
from offmap.extra_passes import Requirements
from offmap.typing import Array

KIND = "detector"


class Detector:
    """Says how well an input is known: a score behind shapers, or a sum of such, fitted on known inputs.

    Made by `offmap.detector("react(90)|energy")` or by composing classes: ``ReAct(90) | Energy()``,
    ``0.5 * KNN(10) + Energy()``. In Python ``+`` binds before ``|``, unlike in the text form: write
    ``(ReAct(90) | Energy()) + KNN(10)``.

    Parameters
    ----------
    layout : sequence of Component or Plan
        Any number of shapers, then one score; or the terms of a sum.

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

    def __init__(self, layout: Sequence[Component] | Plan) -> None:
        self._lay_out(layout if isinstance(layout, Plan) else Plan.of(layout))

    def _lay_out(self, plan: Plan) -> None:
        """Take a plan that makes sense, and forget everything that was learnt."""
        self.spec = plan
        parts = [component for chain in self.spec.chains for component in chain]
        if len(parts) > 1 and any(isinstance(component, Auto) for component in parts):
            raise InputError(f"{self.spec}: auto chooses a whole sum, with its shapers; write it by itself")
        for chain in self.spec.chains:
            check_chain(chain)
        self._reset()

    def _reset(self) -> None:
        """Forget everything that was learnt."""
        self.plan = self.spec  # the same, with every `auto` decided
        self.fitting: Fitting | None = None  # once it has seen anything
        self.calibration: Calibration | None = None
        self.trials = Trials()

    def __repr__(self) -> str:
        return repr(self.spec)

    @property
    def components(self) -> tuple[Component, ...]:
        """The methods it is made of; what several terms of a sum begin with, once."""
        return self.spec.components

    @property
    def terms(self) -> tuple[Term, ...]:
        """The summands, one for a single score."""
        return self.spec.terms

    @property
    def chosen(self) -> str:
        """The text form with every ``auto`` replaced by what was chosen."""
        return repr(self.plan)

    def __add__(self, other: Any) -> Detector:
        """Add a score or another detector; the result is not fitted."""
        if isinstance(other, Score):
            other = Detector((other,))
        if not isinstance(other, Detector):
            return NotImplemented
        if {self.spec.combine, other.spec.combine} != {"sum"}:
            raise InputError(f"({self}) + ({other}): only sums add up; combine all terms in one way")
        return Detector(Plan((*self.terms, *other.terms)))

    def __radd__(self, other: Any) -> Detector:
        """Let ``sum([KNN(10), Energy()])`` begin with 0."""
        return self if other == 0 else NotImplemented

    def __mul__(self, weight: Any) -> Detector:
        """Give its terms a weight; the result is not fitted."""
        if isinstance(weight, bool) or not isinstance(weight, int | float | np.number):
            return NotImplemented
        terms = tuple(Term(term.components, term.weight * float(weight)) for term in self.terms)
        return Detector(Plan(terms, self.spec.combine))

    __rmul__ = __mul__

    def behind(self, shapers: Sequence[Component]) -> Detector:
        """Put shapers before every term; the result is not fitted.

        Examples
        --------
        >>> from offmap import Energy, MSP, ReAct
        >>> ReAct(90) | (Energy() + MSP())
        react(90)|energy + react(90)|msp
        """
        return Detector(self.spec.behind(shapers))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Give all parameters, named ``component__parameter``.

        Of a method used twice, ``react-1__…`` and ``react-2__…``; of a sum also ``weights`` and ``combine``.
        """
        of_sum = {"weights": self.spec.weights, "combine": self.spec.combine} if self.spec.is_sum else {}
        return of_sum | {
            f"{name}__{field}": value
            for name, component in zip(self._component_names, self.components, strict=True)
            for field, value in asdict(component).items()
        }

    def set_params(self, **params: Any) -> Self:
        """Set parameters by the names that `get_params` gives; what was fitted is forgotten.

        Examples
        --------
        >>> import offmap
        >>> offmap.detector("react(90)|knn(5)").set_params(knn__k=10, react__percentile=95)
        react(95)|knn(10)
        """
        if not params:
            return self
        if unknown := params.keys() - self.get_params().keys():
            raise InputError(
                f"{self}.set_params({min(unknown)}=...): there is no such parameter; there are "
                f"{', '.join(self.get_params())}"
            )
        changed = [
            replace(
                component,
                **{
                    key.removeprefix(f"{name}__"): value for key, value in params.items() if key.startswith(f"{name}__")
                },
            )
            for name, component in zip(self._component_names, self.components, strict=True)
        ]
        weights = params.get("weights", self.spec.weights)
        if len(weights) != len(self.terms):
            raise InputError(f"{self}.set_params(weights={weights!r}): one weight for each of {len(self.terms)} terms")
        chains = [tuple(changed[place] for place in self.spec.path(end)) for end in self.spec.ends]
        terms = tuple(Term(chain, weight) for chain, weight in zip(chains, weights, strict=True))
        self._lay_out(Plan(terms, params.get("combine", self.spec.combine)))
        return self

    @property
    def _component_names(self) -> list[str]:
        names = [component.name for component in self.components]
        return [
            f"{name}-{names[: place + 1].count(name)}" if names.count(name) > 1 else name
            for place, name in enumerate(names)
        ]

    def __sklearn_clone__(self) -> Detector:
        """Give scikit-learn a detector that is not fitted, with the same text form."""
        return Detector(self.spec)

    @property
    def states(self) -> list[State | None]:
        """The fitted tensors of each component; `None` for one that is not fitted yet."""
        return [None for _ in self.plan.components] if self.fitting is None else self.fitting.states

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
        if (auto := self._auto) is not None:
            return auto.requirements
        wanted = required(self.plan.chains, fitting=not self.is_fitted)
        found = Requirements(
            "features" in wanted,
            "logits" in wanted,
            "head" in wanted,
            "labels" in wanted,
            (self.fitting or Fitting(self.plan)).requests(),
        )
        if self.fitting is None:
            # With nothing to fit, a score can ask for its pass at once; behind shapers it needs the head that fit()
            # brings.
            for chain in self.plan.chains:
                if len(chain) == 1 and not chain[0].fits:
                    fitting = Fitting(Plan.of(chain))
                    fitting.solve()
                    found |= Requirements(extras=fitting.requests())
        return found | Requirements()

    @property
    def _fits(self) -> bool:
        """Whether anything must be given before scoring, be it only the head."""
        return self.plan.is_sum or any(component.fits for component in self.plan.components)

    @property
    def _learns(self) -> bool:
        """Whether anything is learnt from inputs."""
        return self.plan.is_sum or any(component.statistics() for component in self.plan.components)

    @property
    def _has_auto(self) -> bool:
        return self._auto is not None or any(AUTO in asdict(component).values() for component in self.plan.components)

    @property
    def _auto(self) -> Auto | None:
        """The `Auto` that stands for the whole sum until it is chosen."""
        return next((component for component in self.plan.components if isinstance(component, Auto)), None)

    @property
    def is_fitted(self) -> bool:
        """Whether it can score."""
        return self.fitting is not None and self.fitting.is_done

    def fit(
        self, known: Any, y: Any = None, *, val: Any = None, outliers: Any = None, device: str | torch.device = "cpu"
    ) -> Self:
        """Fit on activations of known inputs, reading them in blocks, as often as exactness takes.

        Parameters
        ----------
        known : Activations or array
            Of inputs that the network was trained on; an array is taken as features.
        y : array of shape (n_inputs,), optional
            The class of each row of an array, as numbers or names. Labels of `Activations` belong to them instead.
        val : Activations or array, optional
            Of held-out known inputs, on which the terms of a sum are standardised; by default on a tenth of `known`
            that is set aside by a seeded hash. ``auto``, as a detector or as a parameter, is chosen on them too; by
            default on a fifth of the known inputs.
        outliers : Activations or array, optional
            Such as noise (`Network.noise`), on which parameters given as ``auto`` are chosen instead of pseudo-unknown
            inputs; never the inputs you report on.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        Detector
            Itself.
        """
        acts, held_out = self._read_known(known, y), None if val is None else as_activations(val)
        if len(acts) == 0:
            raise InputError(f"{self}.fit: no inputs; fit on at least one")
        self._reset()
        if self._has_auto:
            self._choose(acts, held_out, None if outliers is None else as_activations(outliers), device)
        if self.plan.is_sum and held_out is not None and len(held_out) == 0:
            raise InputError(f"{self}.fit: val holds no inputs; give at least one, or leave it out")
        fitting = self._begin(acts, hold_out=held_out is None)
        for _ in self.readings():
            for part in acts.blocks():
                fitting.show(part, device)
        if self.plan.is_sum and held_out is not None:
            self._check_input(held_out, fitting=False)
            fitting.standardize(held_out, device)
        return self

    def _read_known(self, known: Any, y: Any) -> Activations:
        if y is None:
            return as_activations(known)
        if isinstance(known, Activations) or isinstance(y, Activations) or np.ndim(y) != 1:
            raise InputError(
                f"{self}.fit(known, y): y holds one class per row of an array; labels of activations belong to them, "
                "offmap.Activations(features, labels=y); held-out known inputs are given by name, fit(known, val=...)"
            )
        return Activations(known, labels=np.unique(np.asarray(y), return_inverse=True)[1])

    def _choose(
        self, known: Activations, val: Activations | None, outliers: Activations | None, device: str | torch.device
    ) -> None:
        """Choose the whole sum, or what is given as auto in each term as if it were the only one."""
        if (auto := self._auto) is not None:
            self.plan, self.trials = choose_sum(auto, known, val, device)
            return
        from offmap.detection.selection import choose

        terms, tried = [], Trials()
        for term in self.spec.terms:
            components, trials = choose(term.components, known, val, outliers, device)
            terms.append(Term(components, term.weight))
            tried += trials
        self.plan, self.trials = Plan(tuple(terms), self.spec.combine), tried

    def _begin(self, acts: Activations, hold_out: bool = True) -> Fitting:
        self._check_input(acts, fitting=True)
        self.fitting = Fitting.of(self.plan, acts, hold_out)
        return self.fitting

    def readings(self) -> Iterator[Requirements]:
        """Go through the readings of the data that fitting takes, one after the other.

        In the body of the loop, show it the whole data once with `update`, or merge copies of it that were shown parts
        of the data. What a reading was enough for is solved when the next begins.

        Yields
        ------
        Requirements
            What the detector reads this time; pass it to `Network.extract`.

        Examples
        --------
        >>> import numpy as np, offmap
        >>> blocks = np.random.default_rng(0).random((10, 50, 4))
        >>> made = offmap.detector("react(90)|knn(5)")
        >>> for requirements in made.readings():
        ...     for block in blocks:
        ...         _ = made.update(block)
        >>> made.is_fitted
        True
        """
        while self.fitting is None or self.fitting.needs_reading:
            yield self.requirements
            if self.fitting is not None and self.fitting.begin_second_pass():
                yield self.requirements
            self.finalize()

    def update(self, block: Any, device: str | torch.device = "cpu") -> Self:
        """Show it a block of known inputs; call `finalize` after the last one.

        A detector whose score is fitted on what a fitted shaper makes of the data, such as ``react(90)|mahalanobis``,
        is not fitted after that (see `is_fitted`): show it all blocks once more and finalize again. `readings` says how
        often, and makes percentiles exact.
        """
        acts = as_activations(block)
        if self._has_auto:
            raise InputError(_needs_data(self))
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
            self.fitting = self.fitting or copy.deepcopy(other.fitting)
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
        inputs, fitting = as_activations(acts), self.fitted
        extras = tuple(name for request in fitting.requests() for name in request.outputs)
        found = self._map(lambda batch: fitting.score(batch).double(), inputs, device, extras)
        scores: Array = np.concatenate([np.empty(0), *found])
        if np.isnan(scores).any():
            row = int(np.flatnonzero(np.isnan(scores))[0])
            raise InputError(
                f"{self}: input {row} gives no number; its activations are too large for float32, check the network"
            )
        return scores

    score_samples = score

    def score_terms(self, acts: Any, device: str | torch.device = "cpu") -> list[Array]:
        """Score with each term of the sum by itself, in its own units; one array per term, in their order."""
        inputs, fitting = as_activations(acts), self.fitted
        extras = tuple(name for request in fitting.requests() for name in request.outputs)
        numbers = range(len(self.plan.terms))

        def score(batch: ActivationBatch) -> torch.Tensor:
            found = fitting.score_terms(batch)
            return torch.stack([found[number].double() for number in numbers], dim=1)

        parts = self._map(score, inputs, device, extras)
        return list(np.concatenate([np.empty((0, len(numbers))), *parts]).T)

    def predict_classes(self, acts: Any, device: str | torch.device = "cpu") -> Array:
        """Predict the class with the largest logit after shaping: what the network would answer if it were shaped too.

        Of a sum whose terms are shaped differently, what the network itself answers.
        """
        inputs, fitting = as_activations(acts), self.fitted
        found = self._map(lambda batch: fitting.shape(batch).logits.argmax(dim=1), inputs, device)
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def _map(
        self,
        function: Callable[[ActivationBatch], torch.Tensor],
        acts: Activations,
        device: str | torch.device,
        extras: tuple[str, ...] = (),
    ) -> list[Array]:
        self._check_input(acts, fitting=False)
        head = self.fitted.tensor_head(device)
        with torch.no_grad():
            return [function(ActivationBatch.of(part, head, device, extras)).cpu().numpy() for part in acts.blocks()]

    def calibrate(
        self, id_acts: Any, tpr: float = 0.95, by_class: bool = False, device: str | torch.device = "cpu"
    ) -> Self:
        """Set the threshold on held-out known inputs, with a guarantee.

        For known inputs exchangeable with these, the chance of a false alarm is at most ``1 - tpr``. Infinite scores
        are ordered as numbers are; where they make the threshold -inf, a warning says that nothing will be flagged.

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
        if not by_class and self.calibration.threshold == -np.inf:
            infinite = int((self.calibration.scores == -np.inf).sum())
            warnings.warn(
                f"{self}: {infinite} of {len(acts)} calibration inputs score -inf, so that nothing will be flagged; "
                "leave them out, or use another score",
                OffmapWarning,
                stacklevel=2,
            )
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
            detector.plan, detector.trials = parse(config["chosen"]), Trials(config["trials"])
            if config["fitting"] is not None:
                detector.fitting = files.restore_fitting(detector.plan, stored)
            detector.calibration = files.restore_calibration(config["tpr"], stored)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise StoreError(f"not a whole detector of this version of offmap ({error!r})") from error
        return detector

    @property
    def fitted(self) -> Fitting:
        """What it has learnt; refused before it can score."""
        if self.fitting is None:
            raise NotFittedError(f"{self}: not fitted; call fit() first")
        if not self.fitting.is_done:
            again = (
                "read the data once more with update() and finalize()" if self.fitting.read_through else "call fit()"
            )
            raise NotFittedError(f"{self}: not fitted; {again}")
        return self.fitting

    def _check_input(self, acts: Activations, fitting: bool) -> None:
        check_input(self.plan.chains, acts, self.head, fitting)
        if self.fitting is None:
            return
        width, n_classes = self.fitting.width, self.fitting.n_classes
        if width is not None and acts.has_features and acts.features.shape[1] != width:
            raise InputError(f"{acts.features.shape[1]} features per input; {self} was fitted on {width}")
        if n_classes is not None and acts.has_logits and acts.n_classes != n_classes:
            raise InputError(f"{acts.n_classes} logits per input; {self} was fitted on {n_classes}")


def detector(spec: str | Component | Detector, combine: str | None = None) -> Detector:
    """Make a detector from its text form, from one score, or like another one.

    Parameters
    ----------
    spec : str, Score or Detector
        Such as ``"react(90)|energy"`` or ``"0.5*knn(10) + energy"``; see `offmap.detection.spec.parse`.
    combine : str, optional
        How the scores of several terms become one: ``"sum"`` of standardised scores (the default), or of their p-values
        ``"fisher"``, ``"stouffer"``, ``"cauchy"`` or ``"harmonic"``. The text form writes it around the terms:
        ``"fisher(knn(10) + energy)"``.

    Returns
    -------
    Detector
        Not fitted.

    Examples
    --------
    >>> detector("react(90)|dice(0.7)|energy(1.0)")
    react(90)|dice(0.7)|energy
    >>> detector("vim + lts(95)|energy", combine="fisher")
    fisher(vim + lts(95)|energy)
    """
    plan = parse(spec) if isinstance(spec, str) else _plan(spec)
    return Detector(plan if combine is None else Plan(plan.terms, combine))


def _plan(given: Component | Detector) -> Plan:
    return given.spec if isinstance(given, Detector) else Plan.of((given,))


def as_activations(values: Any) -> Activations:
    """Activations as they are; an array becomes activations with these features."""
    return values if isinstance(values, Activations) else Activations(values)


def _needs_data(detector: Detector) -> str:
    return (
        f"{detector}: auto is chosen from known inputs in hand; call fit(known) on a sample of them, then show all of "
        "them to offmap.detector(fitted.chosen)"
    )
