"""`PlanFitter`: a plan of shapers and scores that is fitted on known inputs. The lowest base of `Detector`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch

from offmap.activations import Activations, Head
from offmap.detection.auto import Auto, Trials, choose_sum
from offmap.detection.base import AUTO, Component, State
from offmap.detection.checks import check_chain, check_columns, check_input, list_required
from offmap.detection.fitted_inputs import FittedInputs
from offmap.detection.fitting import Fitting
from offmap.detection.terms import Plan, Term
from offmap.detection.warnings import warn_of_one_logit, warn_of_probabilities, warn_of_table_columns, without_advice
from offmap.errors import InputError, NotFittedError
from offmap.extra_passes import Requirements


class PlanFitter:
    """A plan of shapers and scores, and what was learnt for it from known inputs.

    Parameters
    ----------
    layout : sequence of Component or Plan
        Any number of shapers, then one score; or the terms of a sum.

    See Also
    --------
    offmap.detection.detectors.Detector : The class that users meet; adds scoring, calibration and files.
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
        self._seen: FittedInputs | None = None
        self.columns: tuple[str, ...] | None = None  # of the DataFrame that it was fitted on
        self.trials = Trials()

    def __repr__(self) -> str:
        return repr(self.spec)

    @property
    def chosen(self) -> str:
        """The text form with every ``auto`` replaced by what was chosen."""
        return repr(self.plan)

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
        """The arrays and passes it reads, for `Network.extract`: to fit before it is fitted, to score afterwards."""
        if (auto := self._auto) is not None:
            return auto.requirements
        wanted = list_required(self.plan.chains, fitting=not self.is_fitted)
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
        """Whether anything must be given before scoring, even if only the head."""
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
            Activations of inputs that the network was trained on; an array is taken as features.
        y : array of shape (n_inputs,), optional
            The class of each row of an array, as numbers or names. Labels of `Activations` belong to them instead.
        val : Activations or array, optional
            Activations of held-out known inputs, on which the terms of a sum are standardised; by default on a tenth
            of `known` that is set aside by a seeded hash. ``auto``, as a detector or as a parameter, is chosen on them
            too; by default on a fifth of the known inputs.
        outliers : Activations or array, optional
            Such as noise (`Network.noise`), on which parameters given as ``auto`` are chosen instead of pseudo-unknown
            inputs; never the inputs you report on.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        Detector
            Itself, fitted.
        """
        acts, held_out = self._read_known(known, y), None if val is None else as_activations(val)
        if len(acts) == 0:
            raise InputError(f"{self}.fit: no inputs; fit on at least one")
        self._reset()
        quiet = without_advice() if self._auto is not None else nullcontext()
        if self._has_auto:
            self._choose(acts, held_out, None if outliers is None else as_activations(outliers), device)
        if self.plan.is_sum and held_out is not None and len(held_out) == 0:
            raise InputError(f"{self}.fit: val holds no inputs; give at least one, or leave it out")
        fitting = self._begin(acts, hold_out=held_out is None)
        with quiet:
            for _ in self.readings():
                for part in acts.blocks():
                    fitting.show(part, device)
        if self.plan.is_sum and held_out is not None:
            self._check_input(held_out, fitting=False)
            fitting.standardize(held_out, device)
        self._seen = FittedInputs.of(acts)
        warn_of_table_columns(self, acts)
        warn_of_one_logit(self, acts)
        warn_of_probabilities(self, acts)
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
        self.columns = acts.columns
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
        """Read a block of known inputs; call `finalize` after the last one.

        A detector whose score is fitted on what a fitted shaper makes of the data, such as ``react(90)|mahalanobis``,
        is not fitted after that (see `is_fitted`): show it all blocks once more and finalize again. `readings` says how
        often, and makes percentiles exact.

        Parameters
        ----------
        block : Activations or array
            Some of the known inputs; an array is taken as features.
        device : str or torch.device, default="cpu"
            Where to compute.

        Returns
        -------
        Detector
            Itself.
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

    def merge(self, other: PlanFitter) -> Self:
        """Add what another detector of the same text form was shown, as if it had been shown here.

        Parameters
        ----------
        other : Detector
            In the same reading of the data, not finalized.

        Returns
        -------
        Detector
            Itself.
        """
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
        """End a reading of the data: solve all that it was enough for.

        Returns
        -------
        Detector
            Itself; `is_fitted` says whether it takes another reading.

        Raises
        ------
        NotFittedError
            If nothing was read.
        """
        if self._fits and not self.is_fitted and (self.fitting is None or not self.fitting.shown):
            raise NotFittedError(f"{self}: nothing was seen; call update(block) before finalize()")
        self.fitting = self.fitting or Fitting(self.plan)
        self.fitting.end_reading()
        return self

    @property
    def fitted(self) -> Fitting:
        """The fitted statistics; raises `NotFittedError` before it can score."""
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
        if self.columns is not None and acts.columns is not None:
            check_columns(self, self.columns, acts.columns)
        width, n_classes = self.fitting.width, self.fitting.n_classes
        if width is not None and acts.has_features and acts.features.shape[1] != width:
            raise InputError(f"{acts.features.shape[1]} features per input; {self} was fitted on {width}")
        if n_classes is not None and acts.has_logits and acts.n_classes != n_classes:
            raise InputError(f"{acts.n_classes} logits per input; {self} was fitted on {n_classes}")


def as_activations(values: Any) -> Activations:
    """Give activations back as they are; make activations with these features of an array.

    Parameters
    ----------
    values : Activations or array-like
        The inputs.

    Returns
    -------
    Activations
        The same, or with the array as features.
    """
    return values if isinstance(values, Activations) else Activations(values)


def _needs_data(fitter: PlanFitter) -> str:
    return (
        f"{fitter}: auto is chosen from known inputs in hand; call fit(known) on a sample of them, then show all of "
        "them to offmap.detector(fitted.chosen)"
    )
