"""`PlanScorer`: a fitted plan that scores inputs. Between `PlanFitter`, which fits it, and `PlanCalibrator`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from offmap.activations import Activations
from offmap.detection.batch import ActivationBatch
from offmap.detection.plan_fitter import PlanFitter, as_activations
from offmap.errors import InputError
from offmap.typing import Array


class PlanScorer(PlanFitter):
    """A plan that is fitted on known inputs and scores others; higher scores mean known.

    See Also
    --------
    offmap.detection.plan_fitter.PlanFitter : Its base, which fits; made of the same.
    offmap.detection.detectors.Detector : The class that users meet.
    """

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
