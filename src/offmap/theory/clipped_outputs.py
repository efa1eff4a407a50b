"""When clipping activations lowers the logits of unknown inputs more than those of known ones (thesis, section 3.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.typing import FloatArray


def make_row_sums_positive(weight: npt.ArrayLike, margin: float = 1e-6) -> FloatArray:
    """Add one positive constant to all weights so that W·1 > 0: probabilities and decisions stay as they are.

    Every logit gains the same constant times the sum of the activations.

    Parameters
    ----------
    weight : array_like of shape (n_classes, n_features)
        W.
    margin : float, default=1e-6
        The least row sum wanted, above 0.

    Returns
    -------
    ndarray of shape (n_classes, n_features)
        W itself where the condition holds.

    Examples
    --------
    >>> make_row_sums_positive([[1.0, -3.0], [1.0, 1.0]], margin=2.0)
    array([[ 3., -1.],
           [ 3.,  3.]])
    """
    rows = np.asarray(weight, dtype=np.float64)
    if rows.ndim != 2 or not rows.size or not margin > 0:
        raise InputError(
            f"make_row_sums_positive(shape {rows.shape}, margin={margin}): classes × features, a margin above 0"
        )
    lowest = float(rows.sum(axis=1).min())
    return rows if lowest >= margin else rows + (margin - lowest) / rows.shape[1]


def output_reduction_gap(
    weight: npt.ArrayLike, known: npt.ArrayLike, unknown: npt.ArrayLike, c: float
) -> tuple[FloatArray, FloatArray]:
    """Compute how much more clipping at c lowers the mean logits of unknown inputs, and what the thesis predicts.

    The thesis takes the units for alike, so that the gap of activations is one number δ: then the gap of logits is
    δ·W·1, positive wherever W·1 > 0. Units are not alike; the true gap has each unit's own δ.

    Parameters
    ----------
    weight : array_like of shape (n_classes, n_features)
        W.
    known, unknown : array_like of shape (n_inputs, n_features)
        Activations.
    c : float
        The threshold.

    Returns
    -------
    gap : ndarray of shape (n_classes,)
        E_out[f − f̄] − E_in[f − f̄].
    predicted : ndarray of shape (n_classes,)
        δ·W·1 with δ the mean over units.

    Examples
    --------
    >>> gap, predicted = output_reduction_gap([[1.0, 1.0]], [[1.0, 1.0]], [[3.0, 3.0]], c=1.0)
    >>> gap.tolist(), predicted.tolist()
    ([4.0], [4.0])
    """
    rows = np.asarray(weight, dtype=np.float64)
    lost = [np.maximum(np.asarray(part, dtype=np.float64) - c, 0).mean(axis=0) for part in (known, unknown)]
    if any(part.shape != (rows.shape[1],) for part in lost):
        raise InputError(f"output_reduction_gap: {rows.shape[1]} weights per class; give activations of that width")
    delta = lost[1] - lost[0]
    return rows @ delta, delta.mean() * rows.sum(axis=1)
