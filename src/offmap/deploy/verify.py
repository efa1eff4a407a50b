"""Compare a guarded graph in ONNX Runtime with the network and its guard in Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offmap.deploy.graphs import ALL_OUTPUTS
from offmap.deploy.tracing import import_packages
from offmap.detection import Detector
from offmap.detection.verdicts import Verdicts
from offmap.errors import VerificationError
from offmap.network import Network
from offmap.network.onnx_backend import evaluate
from offmap.typing import Array


@dataclass(frozen=True)
class Reference:
    """A batch of inputs, and what Python says of it."""

    inputs: Any
    logits: Array
    verdicts: Verdicts


@dataclass(frozen=True)
class Agreement:
    """The number of inputs compared, and the largest difference of scores in units of their size."""

    inputs: int
    difference: float


def collect_references(net: Network, guard: Detector, batches: Iterable[Any]) -> list[Reference]:
    """Run the Python path over some batches.

    Parameters
    ----------
    net : Network
        Gives the activations.
    guard : Detector
        Gives the verdicts.
    batches : iterable
        Batches of inputs.

    Returns
    -------
    list of Reference
        One per batch.
    """
    found = []
    for batch in batches:
        acts = net(batch)
        found.append(Reference(batch, np.asarray(acts.logits), guard.verdicts(acts)))
    return found


def check_agreement(path: Path, guard: Detector, expected: list[Reference], tolerance: float) -> Agreement:
    """Run a graph on every batch and compare it with Python.

    Scores may differ by `tolerance` times their size, which is the score itself or the spread of the calibration
    scores, whichever is larger. Verdicts must be the same, and p-values those of a score that near.

    Parameters
    ----------
    path : Path
        The graph.
    guard : Detector
        The guard in it.
    expected : list of Reference
        What `collect_references` found.
    tolerance : float
        The relative difference of scores that is allowed.

    Returns
    -------
    Agreement
        How well they agree.

    Raises
    ------
    VerificationError
        With what differs.
    """
    assert guard.calibration is not None
    calibration = guard.calibration.scores
    finite = calibration[np.isfinite(calibration)]
    spread = float(finite.std()) if len(finite) else 0.0
    session = open_session(path)
    worst, inputs = 0.0, 0
    for batch in expected:
        try:
            logits, score, p_value, known = evaluate(session, ALL_OUTPUTS, batch.inputs)
        except RuntimeError as error:
            raise VerificationError(f"ONNX Runtime does not run the graph: {error}") from error
        _same_logits(logits, batch.logits, tolerance)
        size = np.maximum(np.abs(batch.verdicts.score), spread)
        worst = max(worst, _same_scores(score.astype(np.float64), batch.verdicts.score, size, tolerance))
        _same_verdicts(
            p_value, known, batch.verdicts, logits.reshape(len(logits), -1).argmax(1), guard, tolerance * size
        )
        inputs += len(score)
    return Agreement(inputs, worst)


def open_session(path: Path) -> Any:
    """Open a graph file in ONNX Runtime on the CPU.

    Parameters
    ----------
    path : Path
        The graph.

    Returns
    -------
    onnxruntime.InferenceSession
        Ready to run.
    """
    _, _, runtime = import_packages()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # of its remarks on a graph only errors are of use here
    try:
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has one kind of exception per failure
        raise VerificationError(f"ONNX Runtime does not take the graph: {str(error).strip()[:300]}") from error


def _same_logits(graph: Array, python: Array, tolerance: float) -> None:
    logits = graph.reshape(len(graph), -1)
    if logits.shape != python.shape:
        raise VerificationError(f"the graph gives logits of the shape {logits.shape}, Python {python.shape}")
    away = float(np.abs(logits - python).max())
    size = float(np.abs(python).max())
    if not away <= tolerance * max(size, 1e-6):
        raise VerificationError(
            f"the graph's logits differ by {away:.3g} from Python's, which reach {size:.3g}; nothing was written. Half "
            f"precision rounds about that much: allow it with tolerance={_rounded_up(away / max(size, 1e-6)):g}"
        )


def _rounded_up(share: float) -> float:
    """Return the next power of ten above, with some room.

    Examples
    --------
    >>> _rounded_up(0.00034), _rounded_up(0.0009)
    (0.001, 0.01)
    """
    return float(10.0 ** np.ceil(np.log10(2 * share)))


def _same_scores(graph: Array, python: Array, size: Array, tolerance: float) -> float:
    away = np.abs(np.where(graph == python, 0, graph - python)) / np.where(np.isfinite(size) & (size > 0), size, 1)
    row = int(np.argmax(np.where(np.isnan(away), np.inf, away)))
    if not away[row] <= tolerance:
        raise VerificationError(
            f"the graph scores an input {graph[row]:.9g} that Python scores {python[row]:.9g}, more than "
            f"{tolerance:g} of its size apart; nothing was written. A method that multiplies the rounding of features, "
            "such as one with a nearly singular covariance, can do so: shrink it, or allow more with tolerance"
        )
    return float(away[row])


def _same_verdicts(
    p_value: Array, known: Array, python: Verdicts, predicted: Array, guard: Detector, margin: Array
) -> None:
    """P-value and verdict are those of a score within the margin, for the class that the graph predicts."""
    calibration = guard.calibration
    assert calibration is not None
    with np.errstate(invalid="ignore"):
        low, high = python.score - margin, python.score + margin
    low, high = np.where(np.isnan(low), python.score, low), np.where(np.isnan(high), python.score, high)
    least, most = calibration.verdicts(low, predicted), calibration.verdicts(high, predicted)
    wrong = (p_value < least.p_value - 1e-6) | (p_value > most.p_value + 1e-6)
    wrong |= (known & ~most.known) | (~known & least.known)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise VerificationError(
            f"for a score of {python.score[row]:.9g} the graph says known={bool(known[row])} with p-value "
            f"{p_value[row]:.6g}, Python known={bool(python.known[row])} with {python.p_value[row]:.6g}; "
            "nothing was written"
        )
