"""A fitted and calibrated detector as a torch module of tensor operations, or the reason why it cannot be one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from offmap.deploy.tracing import repeat_single_row, trace_module
from offmap.deploy.verdicts import VerdictModule
from offmap.detection import Detector
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.errors import InputError, NotFittedError
from offmap.extra_passes import BatchStatistics, Edited, Layer, Members, Passes, Perturbed, Request
from offmap.network.reductions import pool_positions

OUTPUTS = ("score", "p_value", "known")

_REASONS: dict[type, str] = {
    Perturbed: "it moves every input along the network's gradient, which ONNX Runtime does not compute",
    Edited: "it runs the network a second time with an inner layer changed",
    Passes: "it runs the network again and again with dropout switched on",
    Members: "it asks several networks, and the graph holds one",
    BatchStatistics: "its answer for one input depends on the others in the batch",
    Layer: "it looks at inner layers, and the graph hands on features and logits only",
}


class GuardFormula(nn.Module):
    """Score, p-value and verdict of features and logits as the network gives them.

    An input whose features or logits are not all finite, which the detector refuses in Python, gets NaN as its score
    and is not known.

    Parameters
    ----------
    guard : Detector
        Fitted and calibrated.
    from_head : bool
        Whether features are what goes into the linear head; otherwise they are averaged over positions.
    n_classes : int
        How many logits there are.
    """

    def __init__(self, guard: Detector, from_head: bool, n_classes: int) -> None:
        super().__init__()
        check_exportable(guard)
        assert guard.calibration is not None
        self.from_head = from_head
        self.head = None if guard.head is None else TensorHead.of(guard.head)
        self.formula = guard.fitted.formula()
        self.verdicts = VerdictModule(guard.calibration, n_classes)

    def score(self, features: Tensor, logits: Tensor) -> Tensor:
        """Compute the detector's score in float64.

        Parameters
        ----------
        features, logits : Tensor
            Features and logits of the inputs.

        Returns
        -------
        Tensor of shape (n,)
            The scores.
        """
        return self.formula(ActivationBatch(features, logits, self.head)).double()

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute score and p-value in float32, and the verdict, which was reached in float64."""
        features, logits = given
        rows = (features.flatten(1) if self.from_head else pool_positions(features)).float()
        classes = logits.flatten(1).float()
        broken = (rows * 0).sum(dim=1) + (classes * 0).sum(dim=1)  # 0, or NaN where anything is not finite
        score = self.score(rows, classes) + broken
        p_value, known = self.verdicts(score, classes)
        return score.float(), p_value.float(), known


def trace_guard(guard: Detector, features: Tensor, logits: Tensor, from_head: bool, opset: int | None) -> Any:
    """Trace a guard from features and logits to score, p-value and verdict.

    Parameters
    ----------
    guard : Detector
        Calibrated.
    features, logits : Tensor
        Examples of its inputs.
    from_head : bool
        Whether logits are computed from features by the head.
    opset : int or None
        Version of the ONNX operators.

    Returns
    -------
    onnx_ir.Model
        The graph.
    """
    formula = GuardFormula(guard, from_head, logits.flatten(1).shape[1]).eval()
    examples = {"features": repeat_single_row(features), "logits": repeat_single_row(logits)}

    def failed(reason: str) -> str:
        return (
            f"{guard.chosen} cannot be drawn as a graph ({reason}); a method of your own that leaves torch needs a "
            "formula() in tensor operations beside its score()"
        )

    return trace_module(formula, examples, OUTPUTS, opset, failed)


def check_exportable(guard: Detector) -> None:
    """Raise an error for a detector without a threshold, or whose score is no formula of features and logits.

    Parameters
    ----------
    guard : Detector
        Fitted.

    Examples
    --------
    >>> import offmap
    >>> check_exportable(offmap.detector("odin").finalize())
    Traceback (most recent call last):
    ...
    offmap.errors.InputError: odin cannot be exported: it moves every input along the network's gradient, ...
    """
    if guard.fitting is None or not guard.is_fitted:
        raise NotFittedError(f"{guard}: not fitted, there is nothing to export yet; call fit() and calibrate() first")
    for part, state in zip(guard.plan.components, guard.states, strict=True):
        for request in part.requests(state, lambda block: block):
            raise InputError(
                f"{part} cannot be exported: {_why(request)}; choose a method that reads features and logits, "
                "or serve it from Python"
            )
    if guard.calibration is None:
        raise NotFittedError(
            f"{guard}: no threshold yet, and the graph says known or unknown; call calibrate(held_out_known, tpr=0.95) "
            "first, or offmap fit with --calibrate"
        )
    if guard.calibration.weights is not None:
        raise InputError(
            f"{guard}: calibrated with weights, which a graph does not compute; calibrate it without shift and shares, "
            "or serve it from Python"
        )


def _why(request: Request) -> str:
    return _REASONS.get(type(request), f"it asks the network for {request.key}")
