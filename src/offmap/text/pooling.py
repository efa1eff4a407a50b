"""From one vector per token to one per text."""

from __future__ import annotations

import numpy as np

from offmap.errors import InputError
from offmap.typing import Array, Float32Array

POOLINGS = ("mean", "cls")


def check_pooling(pooling: str) -> str:
    """Return the name of a way to pool, after checking that there is such a one."""
    if pooling not in POOLINGS:
        raise InputError(f"pooling={pooling!r}: choose one of {', '.join(POOLINGS)}")
    return pooling


def pool_tokens(vectors: Array, mask: Array, pooling: str, normalize: bool) -> Float32Array:
    """Pool the vectors of tokens: their mean where the mask is 1, or the first one; then scale rows to length 1.

    Examples
    --------
    >>> pool_tokens(np.array([[[1.0, 0], [3, 0], [9, 9]]]), np.array([[1, 1, 0]]), "mean", False)
    array([[2., 0.]], dtype=float32)
    """
    if vectors.ndim == 2:  # pooled in the network
        rows = vectors
    elif pooling == "cls":
        rows = vectors[:, 0]
    else:
        counts = np.maximum(mask.sum(axis=1, keepdims=True), 1)
        rows = np.einsum("btd,bt->bd", vectors, mask.astype(vectors.dtype)) / counts
    out = np.asarray(rows, np.float32)
    return scale_rows(out) if normalize else out


def scale_rows(rows: Float32Array) -> Float32Array:
    """Scale rows to length 1; a row of zeros stays."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))


def average_pieces(rows: Float32Array, owners: Array, sizes: Array, n: int) -> Float32Array:
    """Average the rows of a text's pieces by their sizes, at the length that the pieces' rows have on average.

    Parameters
    ----------
    rows : array
        One per piece.
    owners, sizes : array of int
        The text that each piece belongs to, and how long the piece is.
    n : int
        The number of texts.

    Examples
    --------
    >>> average_pieces(np.eye(2, dtype=np.float32), np.array([0, 0]), np.array([3, 1]), 1).round(3)
    array([[0.949, 0.316]], dtype=float32)
    """
    if len(rows) == n:
        out = np.empty_like(rows)
        out[owners] = rows
        return out
    weights = sizes / np.bincount(owners, sizes, n)[owners]
    total = np.zeros((n, rows.shape[1]))
    np.add.at(total, owners, rows * weights[:, None])
    length = np.bincount(owners, weights * np.linalg.norm(rows, axis=1), n)
    total *= (length / np.maximum(np.linalg.norm(total, axis=1), 1e-12))[:, None]
    return total.astype(np.float32)
