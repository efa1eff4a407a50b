"""`ScoringRequest`: one request for scores, from the parsed body to the answer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offmap.activations import as_array
from offmap.errors import InputError
from offmap.openworld import Deployment
from offmap.openworld.deployment import RowKind
from offmap.service.request_errors import RequestError
from offmap.service.settings import Settings
from offmap.typing import Array

Result = dict[str, Any]
NPY = "application/x-npy"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, eq=False)
class ScoringRequest:
    """Rows to be scored, and what is needed to keep the unknown ones and to answer.

    Parameters
    ----------
    kind : {"features", "inputs", "texts"}
        Whether the rows are features of the network, inputs to it, or texts for the encoder.
    rows : array-like
        One row per input.
    contents : sequence of bytes or None, default=None
        The inputs as they were sent (images, texts), to be stored instead of the rows.
    content_type : str or None, default=None
        The media type of `contents`.
    references : sequence of str or None, default=None
        The client's name for each row, stored with unknown inputs.
    deployment : Deployment or None, default=None
        What answers it; set by `validate`.
    future : Future
        Receives one result per row.
    """

    kind: RowKind
    rows: Any
    contents: Sequence[bytes] | None = None
    content_type: str | None = None
    references: Sequence[str] | None = None
    deployment: Deployment | None = None
    future: Future[list[Result]] = field(default_factory=Future)

    def __len__(self) -> int:
        return len(self.rows)

    def validate(self, deployment: Deployment, settings: Settings) -> ScoringRequest:
        """Check the rows against what a deployment reads, and assign the request to it.

        Parameters
        ----------
        deployment : Deployment
            The deployment that will answer, also when another one is put in service meanwhile.
        settings : Settings
            Limits, and the shape and type of inputs.

        Returns
        -------
        ScoringRequest
            The same request with an array of finite numbers.

        Raises
        ------
        RequestError
            If there are no rows or too many.
        InputError
            If the rows do not fit the deployment.
        """
        rows = _as_objects(self.rows) if self.kind == "texts" else as_array(self.rows, self.kind)
        if rows.ndim == 0 or len(rows) == 0:
            raise RequestError(400, f"{self.kind}: the batch is empty; send at least one row")
        if len(rows) > settings.max_rows:
            raise RequestError(413, f"{len(rows)} rows, the limit is {settings.max_rows}; send them in parts")
        if self.kind != "texts" and rows.dtype.kind not in "fiu":
            raise InputError(f"{self.kind}: numbers are needed, not {rows.dtype}")
        for name, given in (("references", self.references), ("contents", self.contents)):
            if given is not None and len(given) != len(rows):
                raise InputError(f"{len(given)} {name} for {len(rows)} rows; give one per row")
        if self.kind == "texts":
            if deployment.encoder is None:
                raise InputError("texts: this service has no text encoder; serve a guard that was made from texts")
            return replace(self, rows=rows, deployment=deployment)
        checked = (
            _check_features(rows, deployment) if self.kind == "features" else _check_inputs(rows, deployment, settings)
        )
        return replace(self, rows=_check_finite(checked, self.kind), deployment=deployment)

    def can_join(self, other: ScoringRequest) -> bool:
        """Tell whether both requests can be scored in one batch."""
        return (
            self.deployment is other.deployment
            and self.kind == other.kind
            and self.rows.shape[1:] == other.rows.shape[1:]
            and self.rows.dtype == other.rows.dtype
        )

    def content(self, row: int) -> tuple[bytes | None, str | None]:
        """Return the input of a row as it is stored, and its media type."""
        if self.contents is not None:
            return self.contents[row], self.content_type
        if self.kind == "features":
            return None, None
        out = io.BytesIO()
        np.save(out, self.rows[row], allow_pickle=False)
        return out.getvalue(), NPY

    def reference(self, row: int) -> str | None:
        """Return the client's name for a row."""
        return None if self.references is None else self.references[row]


def _as_objects(texts: Sequence[str]) -> Array:
    """Put texts into an array that does not widen all of them to the longest."""
    rows = np.empty(len(texts), object)
    rows[:] = texts
    return rows


def _check_features(rows: Array, deployment: Deployment) -> Array:
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError(f"features of shape {_format_shape(rows.shape)}: two dimensions are needed, rows × features")
    if deployment.width is not None and rows.shape[1] != deployment.width:
        raise InputError(f"{rows.shape[1]} features per row; the guard reads {deployment.width}")
    if deployment.requirements.extras:
        raise InputError(f"the guard reads {deployment.requirements.describe()}; send inputs, not features")
    return _cast(rows, np.dtype(np.float32))


def _check_inputs(rows: Array, deployment: Deployment, settings: Settings) -> Array:
    if deployment.network is None:
        raise InputError("inputs: this service has no network; send features, or start it with --model")
    expected, dtype = settings.input_shape, np.dtype(settings.input_dtype)
    if expected is not None and rows.shape[1:] != expected:
        raise InputError(
            f"inputs of shape {_format_shape(rows.shape[1:])}; the network takes {_format_shape(expected)}"
        )
    if rows.ndim < 2 or 0 in rows.shape:
        raise InputError(f"inputs of shape {_format_shape(rows.shape)}: rows of numbers are needed")
    if dtype.kind in "iu" and rows.dtype.kind == "f":
        raise InputError(f"inputs: the network reads whole numbers, not {rows.dtype}")
    if dtype.kind in "iu" and not (np.iinfo(dtype).min <= rows.min() and rows.max() <= np.iinfo(dtype).max):
        raise InputError(f"inputs: numbers beyond {dtype}")
    return _cast(rows, dtype)


def _cast(rows: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):  # numbers that do not fit become infinite, and are rejected as such
        return np.ascontiguousarray(rows, dtype=dtype)


def _check_finite(rows: Array, name: str) -> Array:
    if rows.dtype.kind == "f":
        bad = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
        if bad.any():
            raise InputError(f"{name}: row {int(np.argmax(bad))} holds NaN or infinity; only finite numbers are scored")
    return rows


def _format_shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "()"
