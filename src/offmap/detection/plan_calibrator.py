"""`PlanCalibrator`: a plan that scores, with a threshold that known inputs set. The base of `Detector`."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import torch

from offmap.activations import Activations
from offmap.detection.calibration import Calibration
from offmap.detection.drift_columns import DriftReference
from offmap.detection.online_fdr import Procedure, VerdictStream, make_procedure
from offmap.detection.p_values import check_confidence
from offmap.detection.plan_fitter import as_activations
from offmap.detection.plan_scorer import PlanScorer
from offmap.detection.shift import CovariateShift, Weigh
from offmap.detection.verdicts import Verdicts
from offmap.detection.warnings import warn_of_equal_scores, warn_of_fitted_inputs
from offmap.errors import InputError, MissingError, NotFittedError, OffmapWarning
from offmap.typing import Array


class PlanCalibrator(PlanScorer):
    """A plan that scores inputs and, once calibrated, says which of them are known.

    See Also
    --------
    offmap.detection.plan_scorer.PlanScorer : Its base, which scores; made of the same.
    offmap.detection.detectors.Detector : The class that users meet.
    """

    def _reset(self) -> None:
        super()._reset()
        self.calibration: Calibration | None = None
        self.shift: Weigh | None = None  # the ratio by which new inputs count
        self.reference: DriftReference | None = None  # what calibration inputs were like, to tell what drifts

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
