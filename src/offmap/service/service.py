"""`Service`: a guard, its network and a pile, behind threads. What the web application and the page hold on to."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import numpy as np

from offmap.activations import as_array
from offmap.detection import Detector
from offmap.errors import InputError, StoreError
from offmap.network import Network
from offmap.service.deployed import Deployed, Kind, checked_names
from offmap.service.monitoring import ServiceMetrics
from offmap.service.request_errors import RequestError
from offmap.service.scoring import Job, Result, Scoring
from offmap.service.settings import Settings
from offmap.service.stores import FolderLock, open_pile
from offmap.typing import Array

Loaded = tuple[Detector, Network | None, Sequence[str] | None]
_log = logging.getLogger(__name__)


class Service:
    """Scores inputs, keeps the unknown ones, and can be given another guard while it runs.

    Parameters
    ----------
    guard
        Fitted and calibrated.
    network
        Runs inputs; without it only features can be scored.
    class_names
        One per class; `None` when classes are known by their index only.
    settings
        Limits, and where the store is.
    load
        Reads guard, network and class names anew from where they came from; for `reload`.

    Examples
    --------
    >>> import offmap, tempfile
    >>> known = offmap.Activations(np.random.default_rng(0).normal(3, size=(200, 2)), head=offmap.Head(np.eye(2)))
    >>> guard = offmap.detector("energy").fit(known[:100]).calibrate(known[100:])
    >>> with Service(guard, settings=Settings(store=tempfile.mkdtemp())) as service:
    ...     (result,) = service.score(features=[[-9.0, -9.0]])
    ...     result["known"], [item.id for item in service.pile.page(10).items] == [result["id"]]
    (False, True)
    """

    def __init__(
        self,
        guard: Detector,
        network: Network | None = None,
        class_names: Sequence[str] | None = None,
        settings: Settings | None = None,
        load: Callable[[], Loaded] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.deployed = Deployed(guard, network, checked_names(class_names))
        self.store_dir: Path = self.settings.store_dir
        self._load = load
        self._swapping = threading.Lock()
        self._closed = False
        self._folder_lock = FolderLock(self.store_dir)
        try:
            self.pile = open_pile(self.settings.store, self.settings.bounds)
        except BaseException:
            self._folder_lock.release()
            raise
        self.watch = ServiceMetrics(self.deployed, self.settings.drift_alpha)
        self.scoring = Scoring(
            self.pile, self.settings.max_batch, self.settings.max_waiting, self.watch.seen, self.watch.count_dropped
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def guard(self) -> Detector:
        """The guard in service."""
        return self.deployed.guard

    @property
    def network(self) -> Network | None:
        """The network in service. Its runs are not thread-safe and belong to the scoring thread: copy it to use it."""
        return self.deployed.network

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of its classes."""
        return self.deployed.class_names

    def submit(
        self,
        kind: Kind,
        rows: Any,
        contents: Sequence[bytes] | None = None,
        content_type: str | None = None,
        references: Sequence[str] | None = None,
    ) -> Future[list[Result]]:
        """Check rows and queue them for scoring; the future gives one result per row.

        Parameters
        ----------
        kind
            ``"features"`` or ``"inputs"``.
        rows
            One row per input.
        contents, content_type
            The inputs as they came (pictures), to be kept instead of the rows.
        references
            One text per row, kept with unknown inputs.
        """
        deployed = self.deployed
        checked = self._checked(deployed, kind, rows)
        for name, given in (("references", references), ("contents", contents)):
            if given is not None and len(given) != len(checked):
                raise InputError(f"{len(given)} {name} for {len(checked)} rows; give one per row")
        return self.scoring.submit(Job(deployed, kind, checked, contents, content_type, references))

    def score(self, features: Any = None, inputs: Any = None, references: Sequence[str] | None = None) -> list[Result]:
        """Score features or inputs and wait for the results; unknown ones are on the pile by then."""
        if (features is None) == (inputs is None):
            raise InputError("score: give features or inputs, one of them")
        kind: Kind = "features" if inputs is None else "inputs"
        return self.submit(kind, features if inputs is None else inputs, references=references).result()

    def swap(self, guard: Detector, network: Network | None = None, class_names: Sequence[str] | None = None) -> str:
        """Put another guard in service. What was accepted before is answered by the old one; nothing is lost.

        Returns
        -------
        str
            The version of the new guard.
        """
        deployed = Deployed(guard, network, checked_names(class_names))
        with self._swapping:
            self.watch.start(deployed)
            self.deployed = deployed
        self.watch.reloads.labels("done").inc()
        _log.info("guard %s in service: %s", deployed.version, guard.chosen)
        return deployed.version

    def reload(self) -> str:
        """Read the guard anew from the file it came from; when that fails, the old one stays.

        Returns
        -------
        str
            The version of the guard now in service.
        """
        if self._load is None:
            raise RequestError(409, "this guard was not read from a file, so it cannot be read again")
        try:
            return self.swap(*self._load())
        except Exception:
            self.watch.reloads.labels("failed").inc()
            raise

    def unready(self) -> str | None:
        """Why requests cannot be answered now; `None` when they can."""
        if self._closed or not self.scoring.alive:
            return "the service is stopping"
        if self.scoring.write_error is not None:
            return "unknown inputs could not be stored at the last try"
        return None

    def metrics(self) -> bytes:
        """The text that Prometheus reads."""
        try:
            totals: tuple[float, float] = self.pile.totals()
        except StoreError:
            totals = (math.nan, math.nan)  # the other figures matter most when the store is gone
        return self.watch.exposition(*totals, self.scoring.waiting_rows)

    def close(self) -> None:
        """Answer what was accepted, then close the pile and give the folder back."""
        if self._closed:
            return
        self._closed = True
        self.scoring.close()
        self.pile.close()
        self._folder_lock.release()

    def _checked(self, deployed: Deployed, kind: Kind, given: Any) -> Array:
        rows = as_array(given, kind)
        if rows.ndim == 0 or len(rows) == 0:
            raise RequestError(400, f"{kind}: the batch is empty; send at least one row")
        if len(rows) > self.settings.max_rows:
            raise RequestError(413, f"{len(rows)} rows, the limit is {self.settings.max_rows}; send them in parts")
        if rows.dtype.kind not in "fiu":
            raise InputError(f"{kind}: numbers are needed, not {rows.dtype}")
        if kind == "features":
            return _finite(_features(rows, deployed), "features")
        if deployed.network is None:
            raise InputError("inputs: this service has no network; send features, or start it with --model")
        return _finite(self._inputs(rows), "inputs")

    def _inputs(self, rows: Array) -> Array:
        wanted, dtype = self.settings.input_shape, np.dtype(self.settings.input_dtype)
        if wanted is not None and rows.shape[1:] != wanted:
            raise InputError(f"inputs of shape {_times(rows.shape[1:])}; the network takes {_times(wanted)}")
        if rows.ndim < 2 or 0 in rows.shape:
            raise InputError(f"inputs of shape {_times(rows.shape)}: rows of numbers are needed")
        if dtype.kind in "iu" and rows.dtype.kind == "f":
            raise InputError(f"inputs: the network reads whole numbers, not {rows.dtype}")
        if dtype.kind in "iu" and not (np.iinfo(dtype).min <= rows.min() and rows.max() <= np.iinfo(dtype).max):
            raise InputError(f"inputs: numbers beyond {dtype}")
        return _cast(rows, dtype)


def _features(rows: Array, deployed: Deployed) -> Array:
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError(f"features of shape {_times(rows.shape)}: two dimensions are needed, rows × features")
    if deployed.width is not None and rows.shape[1] != deployed.width:
        raise InputError(f"{rows.shape[1]} features per row; the guard reads {deployed.width}")
    if deployed.requirements.extras:
        raise InputError(f"the guard reads {deployed.requirements.describe()}; send inputs, not features")
    return _cast(rows, np.dtype(np.float32))


def _cast(rows: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused as such
        return np.ascontiguousarray(rows, dtype=dtype)


def _finite(rows: Array, name: str) -> Array:
    if rows.dtype.kind == "f":
        bad = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
        if bad.any():
            raise InputError(f"{name}: row {int(np.argmax(bad))} holds NaN or infinity; only finite numbers are scored")
    return rows


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "()"
