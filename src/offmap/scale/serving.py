"""A guard as an application of Ray Serve: as many replicas as asked for, on any node of a cluster."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

import offmap
from offmap.detection import Detector
from offmap.errors import DependencyError, InputError, OffmapError
from offmap.openworld import Deployment

MAX_ROWS = 4096


class GuardReplica:
    """Answers requests with a guard; Ray Serve makes one per replica.

    Parameters
    ----------
    content : bytes
        Of a file that `offmap.load` reads: a calibrated detector, or a `Deployment` with its network.

    Examples
    --------
    >>> known = offmap.Activations(np.random.default_rng(0).normal(3, size=(200, 2)), head=offmap.Head(np.eye(2)))
    >>> file = Path(tempfile.mkdtemp()) / "guard.offmap"
    >>> offmap.detector("energy").fit(known[:100]).calibrate(known[100:]).save(file)
    >>> GuardReplica(file.read_bytes()).score([[3.0, 3.0], [-9.0, -9.0]])[1]["known"]
    False
    """

    def __init__(self, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:  # nodes need not share a disk
            file = Path(folder) / "guard.offmap"
            file.write_bytes(content)
            found = offmap.load(file)
        if not isinstance(found, Detector | Deployment):
            raise InputError(f"a {type(found).__name__} cannot be served; give a calibrated detector or a deployment")
        self.deployment = Deployment(found) if isinstance(found, Detector) else found

    def score(
        self, rows: Sequence[Any], kind: Literal["features", "inputs", "texts"] = "features"
    ) -> list[dict[str, Any]]:
        """Score rows, as the handle of the application does too; each gets a class, score, p-value and verdict."""
        if not 1 <= len(rows) <= MAX_ROWS:
            raise InputError(f"{len(rows)} rows: a request has from 1 to {MAX_ROWS}")
        given: Any = list(rows)
        if kind != "texts":
            with np.errstate(over="ignore"):  # numbers that do not fit become infinite, and are refused as such
                given = np.asarray(rows, np.float32)
            if not np.isfinite(given).all():
                raise InputError(f"{kind}: a row holds NaN or infinity; only finite numbers are scored")
        verdicts = self.deployment.verdicts(given, kind)
        classes = [None] * len(rows) if verdicts.predicted is None else verdicts.predicted.tolist()
        parts = (verdicts.known.tolist(), verdicts.p_value.tolist(), verdicts.score.tolist(), classes)
        return [
            {"known": known, "p_value": p_value, "score": score, "class": self.deployment.class_name(label)}
            for known, p_value, score, label in zip(*parts, strict=True)
        ]

    async def __call__(self, request: Any) -> Any:
        """Answer a request over HTTP: ``{"features": [[…]]}``, ``{"inputs": …}`` or ``{"texts": […]}``."""
        from starlette.responses import JSONResponse

        try:
            body = await request.json()
            kinds = [kind for kind in ("features", "inputs", "texts") if isinstance(body, dict) and kind in body]
            if len(kinds) != 1 or not isinstance(body[kinds[0]], list):
                raise InputError('a JSON object with one list is needed: "features", "inputs" or "texts"')
            return {"results": self.score(body[kinds[0]], kinds[0])}  # type: ignore[arg-type]  # one of the three
        except (OffmapError, TypeError, ValueError, OverflowError, RecursionError) as error:
            sentence = str(error) or type(error).__name__
            return JSONResponse({"error": sentence.encode(errors="replace").decode()}, 422)


def make_serve_app(guard: str | os.PathLike[str], **options: Any) -> Any:
    """Make an application of Ray Serve that answers with a guard.

    It scores only: it has none of the store of unknown inputs, the limits and the triage page of ``offmap serve``.

    Parameters
    ----------
    guard : path
        A file that `offmap.load` reads: a calibrated detector, which takes features, or a deployment, which takes
        inputs or texts. Its content travels with the application.
    **options : Any
        Of ``ray.serve.deployment``, such as `num_replicas`, `autoscaling_config`, `max_ongoing_requests` or
        `ray_actor_options`.

    Returns
    -------
    ray.serve.Application
        For ``ray.serve.run``.

    Raises
    ------
    InputError
        If the file cannot be served.
    DependencyError
        If Ray Serve is not installed.

    Examples
    --------
    >>> make_serve_app("missing.offmap")
    Traceback (most recent call last):
    offmap.errors.InputError: missing.offmap: there is no such file
    """
    file = Path(guard)
    if not file.is_file():
        raise InputError(f"{file}: there is no such file")
    content = file.read_bytes()
    GuardReplica(content)  # what is wrong with it is said here, not by a replica that does not start
    try:
        from ray import serve
    except ImportError as error:
        raise DependencyError(
            "serving on a cluster needs Ray Serve, which is not installed: pip install 'offmap[ray]'"
        ) from error
    return serve.deployment(GuardReplica, name="guard").options(**options).bind(content)
