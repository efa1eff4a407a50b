"""`Detector`: shapers and a score, or a sum of such, fitted on known inputs, with a threshold."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np
import torch

from offmap import store
from offmap.activations import Activations
from offmap.detection import files
from offmap.detection.auto import Trials
from offmap.detection.base import Component, Score
from offmap.detection.batch import ActivationBatch
from offmap.detection.calibration import Calibration
from offmap.detection.drift_columns import DriftReference
from offmap.detection.online_fdr import Procedure, VerdictStream, make_procedure
from offmap.detection.p_values import check_confidence
from offmap.detection.plan_fitter import PlanFitter, as_activations
from offmap.detection.shift import CovariateShift, Weigh
from offmap.detection.spec import parse
from offmap.detection.terms import Plan, Term
from offmap.detection.verdicts import Verdicts
from offmap.detection.warnings import warn_of_equal_scores, warn_of_fitted_inputs
from offmap.errors import InputError, MissingError, NotFittedError, OffmapWarning
from offmap.typing import Array

KIND = "detector"


class Detector(PlanFitter):
    """A score behind shapers, or a sum of such, fitted on known inputs; higher scores mean known.

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

    def _reset(self) -> None:
        super()._reset()
        self.calibration: Calibration | None = None
        self.shift: Weigh | None = None  # the ratio by which new inputs count
        self.reference: DriftReference | None = None  # what calibration inputs were like, to tell what drifts

    @property
    def components(self) -> tuple[Component, ...]:
        """The methods it is made of; what several terms of a sum begin with, once."""
        return self.spec.components

    @property
    def terms(self) -> tuple[Term, ...]:
        """The summands, one for a single score."""
        return self.spec.terms

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

        Parameters
        ----------
        shapers : sequence of Component
            In the order in which they are applied.

        Returns
        -------
        Detector
            A new one.

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

        Parameters
        ----------
        deep : bool, default=True
            Not used; there so that scikit-learn's tools can call it.

        Returns
        -------
        dict of str to Any
            The values by name.
        """
        of_sum = {"weights": self.spec.weights, "combine": self.spec.combine} if self.spec.is_sum else {}
        return of_sum | {
            f"{name}__{field}": value
            for name, component in zip(self._component_names, self.components, strict=True)
            for field, value in asdict(component).items()
        }

    def set_params(self, **params: Any) -> Self:
        """Set parameters by the names that `get_params` gives; what was fitted is forgotten.

        Parameters
        ----------
        **params : Any
            Values by name.

        Returns
        -------
        Detector
            Itself, not fitted.

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

    def score(self, acts: Any, device: str | torch.device = "cpu") -> Array:
        """Score inputs: one number each, higher means known.

        Parameters
        ----------
        acts : Activations or array
            The inputs; an array is taken as features.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        ndarray of float64 of shape (n_inputs,)
            The scores.

        Raises
        ------
        NotFittedError
            Before it is fitted.
        InputError
            If the score of an input is not a number.
        """
        inputs, fitting = as_activations(acts), self.fitted
        found = self._map(lambda batch: fitting.score(batch).double(), inputs, device)
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
        numbers = range(len(self.plan.terms))

        def score(batch: ActivationBatch) -> torch.Tensor:
            found = fitting.score_terms(batch)
            return torch.stack([found[number].double() for number in numbers], dim=1)

        parts = self._map(score, inputs, device)
        return list(np.concatenate([np.empty((0, len(numbers))), *parts]).T)

    def predict_classes(self, acts: Any, device: str | torch.device = "cpu") -> Array:
        """Predict the class of each input from the shaped logits.

        Of a sum whose terms are shaped differently, from the logits of the network as they are.

        Parameters
        ----------
        acts : Activations or array
            The inputs; an array is taken as features.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        ndarray of int64 of shape (n_inputs,)
            The class with the largest logit.
        """
        inputs, fitting = as_activations(acts), self.fitted
        found = self._map(lambda batch: fitting.shape(batch).logits.argmax(dim=1), inputs, device)
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def _map(
        self,
        function: Callable[[ActivationBatch], torch.Tensor],
        acts: Activations,
        device: str | torch.device,
    ) -> list[Array]:
        self._check_input(acts, fitting=False)
        head = self.fitted.tensor_head(device)
        extras = tuple(name for request in self.fitted.requests() for name in request.outputs)
        with torch.no_grad():
            return [function(ActivationBatch.of(part, head, device, extras)).cpu().numpy() for part in acts.blocks()]

    def calibrate(
        self,
        id_acts: Any,
        tpr: float = 0.95,
        by_class: bool = False,
        device: str | torch.device = "cpu",
        *,
        confidence: float | None = None,
        shift: Any = None,
    ) -> Self:
        """Set the threshold on held-out known inputs, with a guarantee.

        For known inputs exchangeable with these, the chance of a false alarm is at most ``1 - tpr``, on average over
        calibration sets; with a `confidence`, at most ``1 - tpr`` for this set, but for a chance of ``1 - confidence``.
        Infinite scores are ordered as numbers are; where they make the threshold -inf, a warning says that nothing will
        be flagged.

        Parameters
        ----------
        id_acts : Activations or array
            Of known inputs that were not used for fitting.
        tpr : float, default=0.95
            The share of known inputs to accept.
        by_class : bool, default=False
            Keep the promise within every predicted class, not only on average (Mondrian).
        device : str or torch.device, default="cpu"
            Where to compute.
        confidence : float, optional
            Such as 0.95: "with 95 % confidence at most 5 % of known inputs are flagged".
        shift : Activations, array or callable, optional
            Where future inputs are of other kinds than these, in another proportion (covariate shift): recent inputs,
            from which the density ratio is estimated, or a function from activations to that ratio, where it is known.
            Then each calibration input counts by its ratio.

        Returns
        -------
        Detector
            Itself.
        """
        acts = as_activations(id_acts)
        classes = self._predicted(acts) if by_class else None
        ratios = None
        if shift is not None and not callable(shift):
            estimated, ratios = CovariateShift.fit(acts.features, as_activations(shift).features)
            weigh: Weigh | None = estimated
        else:
            weigh = shift
            ratios = None if weigh is None else np.asarray(weigh(acts), np.float64)
        scores = self.score(acts, device)
        self.calibration = Calibration.of(scores, tpr, classes, self.n_classes, confidence, ratios)
        self.shift = weigh
        predicted = self._predicted(acts) if self._can_predict(acts) else None
        features = acts.features if acts.has_features else None
        self.reference = DriftReference.of(scores, predicted, features, self.n_classes)
        if self._seen is not None and self._learns:
            warn_of_fitted_inputs(self, self._seen, acts)
        warn_of_equal_scores(self, scores)
        if not by_class and ratios is None and self.calibration.threshold == -np.inf:
            infinite = int((self.calibration.scores == -np.inf).sum())
            warnings.warn(
                f"{self}: {infinite} of {len(acts)} calibration inputs score -inf, so that nothing will be flagged; "
                "leave them out, or use another score",
                OffmapWarning,
                stacklevel=2,
            )
        return self

    def recalibrate(
        self, confirmed: Any, window: int = 1000, shares: Any = None, device: str | torch.device = "cpu"
    ) -> Self:
        """Move the calibration on with inputs that people have confirmed as known; the oldest are dropped.

        The promise of `calibrate` then holds for known inputs exchangeable with those in the window. So the confirmed
        inputs must be a fair sample of known inputs: not only of those that were flagged. Where flagged inputs are
        looked at more often than others, say so with `shares`.

        Parameters
        ----------
        confirmed : Activations or array
            Of inputs confirmed as known, in the order of arrival.
        window : int, default=1000
            The number of inputs to keep; of each class where calibrated by class.
        shares : array-like, optional
            For each input the share of inputs like it that was looked at: 1.0 where all flagged inputs were, 0.02 where
            one in 50 accepted ones was.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        Detector
            Itself.
        """
        calibration, acts = self._calibrated(), as_activations(confirmed)
        if self.shift is not None:
            raise InputError(f"{self}: calibrated for a shift; calibrate again with the confirmed inputs instead")
        weights = None if shares is None else np.asarray(shares, np.float64)
        if weights is not None:
            if weights.shape != (len(acts),) or not ((weights > 0) & (weights <= 1)).all():
                raise InputError(f"shares of shape {weights.shape}: one number above 0 and up to 1 per input is needed")
            weights = 1 / weights
        classes = None if calibration.classes is None else self._predicted(acts)
        self.calibration = calibration.extend(self.score(acts, device), window, classes, weights)
        return self

    def stream(
        self, fdr: float = 0.1, procedure: Procedure = "saffron", confidence: float | None = None
    ) -> VerdictStream:
        """Judge a stream of inputs one after the other, keeping the false discovery rate at every moment.

        Parameters
        ----------
        fdr : float, default=0.1
            The expected share of known inputs among all that were flagged so far.
        procedure : {"saffron", "lord"}, default="saffron"
            Which rule gives the levels; see `offmap.detection.online_fdr`.
        confidence : float, optional
            Use p-values that hold given this calibration set but for a chance of ``1 - confidence``, for which the
            bound is proved. Without it the plain p-values are used, which find more: they all depend on one set of
            calibration scores, for which the bound is shown by simulation only.

        Returns
        -------
        VerdictStream
            Call it with batches, in the order of arrival.

        Notes
        -----
        No p-value is below 1 / (n + 1) for n calibration inputs, and levels fall while nothing is found. With few
        calibration inputs a stream that begins with a long time of known inputs can flag nothing any more; see
        `VerdictStream.can_flag`.

        Examples
        --------
        >>> import numpy as np, offmap
        >>> rng = np.random.default_rng(0)
        >>> guard = offmap.detector("knn(5, normalize=false)")
        >>> guard = guard.fit(rng.normal(size=(500, 4))).calibrate(rng.normal(size=(2000, 4)))
        >>> stream = guard.stream(fdr=0.1)
        >>> [int(np.sum(~stream(rng.normal(size=(20, 4)) + shift).known)) for shift in (9, 0, 9)]
        [20, 5, 20]
        """
        calibration = self._calibrated()
        if calibration.weights is not None:
            raise InputError(f"{self}: calibrated with weights, for which nothing is promised on streams")
        if confidence is not None:
            check_confidence(confidence)
        return VerdictStream(self, make_procedure(procedure, fdr), confidence)

    @property
    def threshold(self) -> float:
        """The score from which an input counts as known."""
        return self._calibrated().threshold

    def verdicts(self, acts: Any, fdr: float | None = None, device: str | torch.device = "cpu") -> Verdicts:
        """Give score, p-value and known or unknown for each input.

        Parameters
        ----------
        acts : Activations or array
            The inputs; an array is taken as features.
        fdr : float or None, default=None
            For a batch judged together: keep the expected share of known inputs among those flagged at most this
            (Benjamini-Hochberg), instead of using the threshold.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        Verdicts
            One verdict per input.

        Raises
        ------
        NotFittedError
            Before `calibrate`.
        """
        calibration = self._calibrated()
        inputs = as_activations(acts)
        classes = self._predicted(inputs) if self._can_predict(inputs) else None
        ratios = None if self.shift is None else np.asarray(self.shift(inputs), np.float64)
        return calibration.verdicts(self.score(inputs, device), classes, fdr, ratios)

    __call__ = verdicts

    def predict(self, acts: Any) -> Array:
        """Predict 1 for known and -1 for unknown inputs, like scikit-learn's outlier detectors.

        Parameters
        ----------
        acts : Activations or array
            The inputs; an array is taken as features.

        Returns
        -------
        ndarray of int of shape (n_inputs,)
            1 or -1.
        """
        return np.where(self.verdicts(acts).known, 1, -1)

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise NotFittedError(f"{self}: no threshold yet; call calibrate(held_out_known, tpr=0.95) first")
        return self.calibration

    def _can_predict(self, acts: Activations) -> bool:
        return acts.has_logits or (self.head is not None and acts.has_features)

    def _predicted(self, acts: Activations) -> Array:
        if acts.has_logits:
            return acts.predictions
        if self.head is None:
            raise MissingError(f"{self}: classes are needed; pass logits=... or head=... to Activations")
        return Activations(acts.features, head=self.head).predictions

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safe file: parameters, fitted tensors, threshold. `offmap.load` gives the detector back.

        A detector that is still being shown data is saved with its statistics, to be merged elsewhere.

        Parameters
        ----------
        path : str or path
            The file to write.
        """
        fitting, calibration = self.fitting, self.calibration
        config: dict[str, Any] = {
            "spec": repr(self),
            "chosen": self.chosen,
            "trials": self.trials,
            "fitting": None if fitting is None else files.fitting_config(fitting),
            "tpr": None if calibration is None else calibration.tpr,
        }
        if calibration is not None and calibration.confidence is not None:
            config["confidence"] = calibration.confidence
        tensors = {} if fitting is None else files.fitting_tensors(fitting)
        if self.columns is not None:
            config["columns"] = list(self.columns)
        tensors |= files.calibration_tensors(calibration, self.reference) | files.shift_tensors(self.shift)
        store.save(path, KIND, config, tensors)

    @classmethod
    def restore(cls, stored: store.Stored) -> Detector:
        """Make the detector of a file that `offmap.load` has read."""
        config = stored.config
        store.check_fields(KIND, config, files.FIELDS)
        with store.restoring(KIND):
            detector = cls(parse(config["spec"]))
            detector.plan, detector.trials = parse(config["chosen"]), Trials(config["trials"])
            if config["fitting"] is not None:
                detector.fitting = files.restore_fitting(detector.plan, stored)
            detector.calibration = files.restore_calibration(config, stored)
            detector.shift = files.restore_shift(detector.fitting, stored)
            detector.reference = files.restore_reference(detector.fitting, stored)
            detector.columns = files.restore_columns(config)
        return detector


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
