"""`Detector`: shapers and a score, or a sum of such, fitted on known inputs, with a threshold.

Here is how it is composed, how its parameters are set and how it is saved. It is fitted by its base
`offmap.detection.plan_fitter`, scores by `offmap.detection.plan_scorer`, and gets its threshold by
`offmap.detection.plan_calibrator`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from offmap import store
from offmap.detection import files
from offmap.detection.auto import Trials
from offmap.detection.base import Component, Score
from offmap.detection.plan_calibrator import PlanCalibrator
from offmap.detection.plan_parameters import list_parameters, replace_parameters
from offmap.detection.spec import parse
from offmap.detection.terms import Plan, Term
from offmap.errors import InputError

KIND = "detector"


class Detector(PlanCalibrator):
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
        return list_parameters(self.spec)

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
        if params:
            self._lay_out(replace_parameters(self.spec, params))
        return self

    def __sklearn_clone__(self) -> Detector:
        """Give scikit-learn a detector that is not fitted, with the same text form."""
        return Detector(self.spec)

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
