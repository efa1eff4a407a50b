"""Steps of a bank before and after the search: check, scale, centre, measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.typing import Array, Float32Array, FloatArray

if TYPE_CHECKING:
    from torch import Tensor

Rows = TypeVar("Rows", Array, "Tensor")
BLOCK_ELEMENTS = 2**22
SERIAL_ELEMENTS = 2**15  # torch copies no more than this on the calling thread alone, which here is what is wanted
CLOSE = 0.01  # share of the size of its terms below which a squared distance has lost too many digits


def as_rows(values: Any, where: str, width: int = 0) -> Float32Array:
    """Turn values into finite float32 rows of the asked width, or raise an error that says what is wrong.

    Parameters
    ----------
    values : array-like
        Rows.
    where : str
        What they are, for messages.
    width : int, default=0
        The width asked for; any when 0.

    Returns
    -------
    ndarray of float32 of shape (n, width)
        The rows.

    Raises
    ------
    InputError
        For another shape, another width, or values that are not finite.

    Examples
    --------
    >>> as_rows([[1, 2]], "queries").dtype
    dtype('float32')
    """
    rows = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise InputError(f"{where} (shape {rows.shape}, {rows.dtype}): give rows × columns of numbers")
    if width and rows.shape[1] != width:
        raise InputError(f"{where}: {rows.shape[1]} columns, but the bank has {width}")
    if not rows.shape[1]:
        raise InputError(f"{where} (shape {rows.shape}): a vector needs at least one column")
    with np.errstate(over="ignore"):
        floats = rows.astype(np.float32, copy=False)
    for block in blocks(floats):
        finite = np.isfinite(floats[block]).all(axis=1)
        if not finite.all():
            raise InputError(
                f"{where}: row {block.start + int(np.argmin(finite))} holds NaN, infinity or a value beyond "
                f"float32; drop such rows or fix what made them"
            )
    return floats


def as_floats(rows: Array) -> Float32Array:
    """Turn stored rows into float32; a copy only if they are float16.

    Parameters
    ----------
    rows : ndarray
        float16 or float32.

    Returns
    -------
    ndarray of float32
        The rows.

    Examples
    --------
    >>> as_floats(np.array([[0.5, 2.0]], dtype=np.float16))
    array([[0.5, 2. ]], dtype=float32)
    """
    if rows.dtype == np.float32:
        return rows
    import torch

    floats = np.empty(rows.shape, np.float32)
    step = max(1, SERIAL_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        # torch widens with the processor's own instruction, eight times as fast as NumPy; the copy is one it may write
        torch.from_numpy(floats[part]).copy_(torch.from_numpy(rows[part].copy()))
    return floats


def unit(rows: Rows) -> Rows:
    """Scale rows to length 1; rows of zeros stay zeros.

    Parameters
    ----------
    rows : array or tensor of shape (n, width)
        NumPy or torch; the answer is of the same kind and precision. Gradients of tensors pass through.

    Returns
    -------
    array or tensor of shape (n, width)
        Rows of length 1.

    See Also
    --------
    unit_and_length : For float32 rows of any size, with the lengths.

    Examples
    --------
    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    if isinstance(rows, np.ndarray):
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
        return rows / np.where(length > 0, length, 1)
    from torch.nn import functional

    return functional.normalize(rows, dim=1, eps=1e-12)


def unit_and_length(rows: Float32Array | FloatArray) -> tuple[Float32Array, FloatArray]:
    """Scale rows to length 1 and return the lengths they had, computed in float64; rows of zeros stay zeros.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
        float32 or float64.

    Returns
    -------
    tuple of 2 ndarray
        Rows of length 1 in float32, and lengths in float64.

    Examples
    --------
    >>> unit_and_length(np.array([[3.0, 4.0]], dtype=np.float32))
    (array([[0.6, 0.8]], dtype=float32), array([5.]))
    """
    length: FloatArray = np.empty(len(rows), np.float64)
    scaled = np.empty(rows.shape, np.float32)
    for block in blocks(rows):
        wide = rows[block].astype(np.float64)  # squares of float32 overflow float32
        length[block] = np.sqrt(np.square(wide).sum(axis=1))
        scaled[block] = wide / np.where(length[block] > 0, length[block], 1)[:, None]
    return scaled, length


def directions(rows: Float32Array, where: str) -> Float32Array:
    """Scale rows to length 1; one of zeros is an error that names it.

    Parameters
    ----------
    rows : ndarray of float32 of shape (n, d)
        The rows.
    where : str
        What they are, for messages.

    Returns
    -------
    ndarray of float32 of shape (n, d)
        Rows of length 1.

    Raises
    ------
    InputError
        For a row of zeros.

    Examples
    --------
    >>> directions(np.array([[0.0, 2.0]], dtype=np.float32), "here")
    array([[0., 1.]], dtype=float32)
    """
    scaled, length = unit_and_length(rows)
    if not length.all():
        raise InputError(
            f"{where}: row {int(np.argmin(length))} is all zeros and has no direction; leave it out or "
            f"use normalize=False"
        )
    return scaled


@dataclass(frozen=True)
class Frame:
    """From closeness to squared distance, ``|q − b|² = constant(q) − 2 · closeness``.

    Unit vectors need nothing. Others are measured from a point amid the bank, because products of vectors
    that share a large offset would lose the digits in which they differ; the bank itself stays as it is.
    """

    center: Float32Array | None = None
    penalties: list[Float32Array] | None = None

    @classmethod
    def of(cls, parts: Sequence[Array]) -> Frame:
        """Return the frame of a bank of any vectors: one pass that keeps one number per row."""
        total = sum(len(part) for part in parts)
        center = take(parts, np.unique(np.linspace(0, total - 1, 1024).astype(np.int64)))
        middle: Float32Array = center.mean(axis=0, dtype=np.float64).astype(np.float32)
        penalties = []
        for part in parts:
            penalty = np.empty(len(part), np.float32)
            for block in blocks(part):
                away = part[block].astype(np.float64) - middle
                with np.errstate(over="ignore"):  # a distance beyond float32 is infinite
                    penalty[block] = np.square(away).sum(axis=1) / 2
            penalties.append(penalty)
        return cls(middle, penalties)

    def shift(self, queries: Float32Array) -> Float32Array:
        """Return the queries as the products need them."""
        return queries if self.center is None else queries - self.center

    def sizes(self, shifted: Float32Array) -> FloatArray:
        """Return how large the products are that each query's closeness is made of: what rounding is relative to."""
        if self.center is None:
            return np.ones(len(shifted))
        lengths: FloatArray = np.sqrt(np.square(shifted, dtype=np.float64).sum(axis=1))
        return lengths * (lengths + float(np.sqrt(np.square(self.center, dtype=np.float64).sum())))

    def squared(self, shifted: Float32Array, closeness: Float32Array) -> tuple[Float32Array, npt.NDArray[np.bool_]]:
        """Turn closeness into squared distances, in place.

        Parameters
        ----------
        shifted : ndarray of float32
            Queries in this frame.
        closeness : ndarray of float32
            The closeness of each query and row; overwritten.

        Returns
        -------
        squared : ndarray of float32
            Not below 0.
        close : ndarray of bool
            Where too many digits cancelled to trust them.
        """
        wide = shifted.astype(np.float64)
        constant = np.square(wide).sum(axis=1) + (1 if self.center is None else 2 * (wide @ self.center))
        squared = closeness
        squared *= -2
        squared += constant.astype(np.float32)[:, None]
        close = squared < (CLOSE * np.abs(constant)).astype(np.float32)[:, None]
        return np.maximum(squared, 0, out=squared), close


def distances(parts: Sequence[Array], queries: Float32Array, rows: Array) -> Float32Array:
    """Compute the distance of each query to the bank row named for it, from the difference of the two.

    Each value depends on its two vectors alone, to the last bit, not on what else is asked.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank.
    queries : ndarray of float32 of shape (n, d)
        The queries.
    rows : ndarray of int of shape (n, k)
        Row numbers.

    Returns
    -------
    ndarray of float32 of shape (n, k)
        The distances.

    Examples
    --------
    >>> bank = np.array([[0.0, 0.0], [3.0, 4.0]], dtype=np.float32)
    >>> distances([bank], np.zeros((1, 2), dtype=np.float32), np.array([1]))
    array([5.], dtype=float32)
    """
    result = np.empty(len(rows), np.float32)
    for block in blocks(queries):
        apart = queries[block] - as_floats(take(parts, rows[block]))
        with np.errstate(over="ignore"):  # a distance beyond float32 is infinite
            result[block] = np.sqrt(np.square(apart, out=apart, dtype=np.float32).sum(axis=1, dtype=np.float64))
    return result


def take(parts: Sequence[Array], chosen: Array) -> Array:
    """Collect rows of a bank by number, whichever part they are in.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank.
    chosen : ndarray of int
        Row numbers.

    Returns
    -------
    ndarray
        The rows.

    Examples
    --------
    >>> take([np.array([10, 11]), np.array([12])], np.array([2, 0]))
    array([12, 10])
    """
    if len(parts) == 1:
        taken: Array = np.asarray(parts[0][chosen])
        return taken
    edges = np.cumsum([0, *(len(part) for part in parts)])
    owner = np.searchsorted(edges, chosen, side="right") - 1
    result = np.empty((*chosen.shape, *parts[0].shape[1:]), parts[0].dtype)
    for number in np.unique(owner):
        here = owner == number
        result[here] = parts[number][chosen[here] - edges[number]]
    return result


def is_mapped(array: Array) -> bool:
    """Return `True` if an array lies in a mapped file, where reading in order matters.

    Parameters
    ----------
    array : ndarray
        Any array or view.

    Returns
    -------
    bool
        Whether it is mapped.

    Examples
    --------
    >>> is_mapped(np.eye(2))
    False
    """
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def blocks(rows: Array) -> list[slice]:
    """Cut rows into runs that are small enough to work on in wider types.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
        The rows.

    Returns
    -------
    list of slice
        In order.

    Examples
    --------
    >>> blocks(np.empty((3, 2)))
    [slice(0, 3, None)]
    """
    size = max(1, BLOCK_ELEMENTS // max(1, math.prod(rows.shape[1:])))
    return [slice(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
