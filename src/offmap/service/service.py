"""`Service`: a deployment and a store of unknown inputs behind two threads, without HTTP."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from offmap.detection.verdicts import limit_value
from offmap.errors import InputError, StoreError
from offmap.openworld import Deployment
from offmap.service.monitoring import ServiceMetrics
from offmap.service.request_errors import RequestError
from offmap.service.requests import TEXT, Result, ScoringRequest
from offmap.service.scoring import Scoring
from offmap.service.settings import Settings
from offmap.service.stores import FolderLock, open_unknown_store
from offmap.text import check_texts

_log = logging.getLogger(__name__)


class Service:
    """Score inputs, store the unknown ones, and replace the deployment while running.

    Parameters
    ----------
    deployment : Deployment
        What answers first.
    settings : Settings or None, default=None
        Limits, and where the store is.
    load : callable or None, default=None
        Reads the deployment again from where it came from; used by `reload`.

    Examples
    --------
    >>> import numpy as np, offmap, tempfile
    >>> known = offmap.Activations(np.random.default_rng(0).normal(3, size=(200, 2)), head=offmap.Head(np.eye(2)))
    >>> guard = offmap.detector("energy").fit(known[:100]).calibrate(known[100:])
    >>> with Service(Deployment(guard), Settings(store=tempfile.mkdtemp())) as service:
    ...     (result,) = service.score(features=[[-9.0, -9.0]])
    ...     result["known"], [item.id for item in service.unknowns.read_page(10).items] == [result["id"]]
    (False, True)
    """

    def __init__(
        self,
        deployment: Deployment,
        settings: Settings | None = None,
        load: Callable[[], Deployment] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.deployment = self._placed(deployment)
        self.deployed_at = time.time()
        self.store_dir: Path = self.settings.store_dir
        self.on_reload: Callable[[Deployment], None] = lambda deployment: None  # called before a reload takes effect
        self.on_close: Callable[[], None] = lambda: None  # called before the store is closed
        self._load = load
        self._deploying = threading.Lock()
        self._closed = False
        self._folder_lock = FolderLock(self.store_dir)
        try:
            self.unknowns = open_unknown_store(self.settings.store, self.settings.store_limits)
        except BaseException:
            self._folder_lock.release()
            raise
        self.metrics = ServiceMetrics(deployment, self.settings.drift_alpha)
        limits = self.settings.max_batch, self.settings.max_waiting
        self.scoring = Scoring(self.unknowns, *limits, self.metrics.record, self.metrics.record_dropped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: ScoringRequest) -> Future[list[Result]]:
        """Check a request and queue it for scoring.

        Parameters
        ----------
        request : ScoringRequest
            For example from `offmap.service.parsing.parse_request`.

        Returns
        -------
        Future
            Gives one result per row; unknown inputs are stored by then.

        Raises
        ------
        RequestError, InputError
            If the request cannot be scored, with one sentence that says why.
        """
        return self.scoring.submit(request.validate(self.deployment, self.settings))

    def score(
        self,
        features: Any = None,
        inputs: Any = None,
        references: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
    ) -> list[Result]:
        """Score features, inputs or texts and wait for the results.

        Parameters
        ----------
        features, inputs : array-like
            One row per input; give one of the three.
        references : sequence of str or None, default=None
            Your own name for each row, stored with unknown inputs.
        texts : sequence of str or None, default=None
            For a deployment with a text encoder.

        Returns
        -------
        list of dict
            One result per row; unknown inputs are stored by then.
        """
        if sum(given is not None for given in (features, inputs, texts)) != 1:
            raise InputError("score: give features, inputs or texts, one of them")
        if texts is not None:
            checked = check_texts(texts, self.settings.max_characters)
            contents = [text.encode() for text in checked]
            return self.submit(ScoringRequest("texts", checked, contents, TEXT, references)).result()
        if inputs is None:
            return self.submit(ScoringRequest("features", features, references=references)).result()
        return self.submit(ScoringRequest("inputs", inputs, references=references)).result()

    def deploy(self, deployment: Deployment) -> str:
        """Put another deployment in service; requests accepted before are answered by the old one.

        Parameters
        ----------
        deployment : Deployment
            Its network is run by the scoring thread only: pass a copy of one that is used elsewhere.

        Returns
        -------
        str
            The version of the new deployment.
        """
        deployment = self._placed(deployment)
        with self._deploying:
            self.metrics.start(deployment)
            self.deployment, self.deployed_at = deployment, time.time()
        self.metrics.reloads.labels("done").inc()
        _log.info("guard %s in service: %s", deployment.version, deployment.detector.chosen)
        return deployment.version

    def _placed(self, deployment: Deployment) -> Deployment:
        """Move the network to the device of the settings, if they name one."""
        if self.settings.device is not None and deployment.network is not None:
            deployment.network.to(self.settings.device)
        return deployment

    def reload(self) -> str:
        """Read the deployment again from its files; when that fails, the old one stays.

        Returns
        -------
        str
            The version of the deployment now in service.
        """
        if self._load is None:
            raise RequestError(409, "this guard was not read from a file, so it cannot be read again")
        try:
            deployment = self._load()
            self.on_reload(deployment)
            return self.deploy(deployment)
        except Exception:
            self.metrics.reloads.labels("failed").inc()
            raise

    def describe(self) -> dict[str, Any]:
        """Describe the deployment in service, as ``GET /v1/guard`` does."""
        deployment = self.deployment
        calibration, names = deployment.calibration, deployment.class_names
        has_classes = calibration.classes is not None and calibration.weights is None
        by_class = calibration.thresholds() if has_classes else None
        has_one = by_class is None and calibration.weights is None
        return {
            "detector": deployment.detector.chosen,
            "version": deployment.version,
            "since": self.deployed_at,
            "tpr": calibration.tpr,
            "confidence": calibration.confidence,
            "threshold": limit_value(calibration.threshold) if has_one else None,
            "thresholds": None
            if by_class is None
            else {str(deployment.class_name(label)): limit_value(threshold) for label, threshold in by_class.items()},
            "calibrated_on": len(calibration.scores),
            "classes": deployment.detector.n_classes,
            "class_names": None if names is None else list(names),
            "features": deployment.width,
            "takes_inputs": deployment.network is not None,
            "takes_texts": deployment.encoder is not None,
        }

    def summarize(self) -> dict[str, Any]:
        """Return the main figures since this deployment is in service, as ``GET /v1/stats`` does."""
        return self.metrics.summarize() | {"pile": self.unknowns.count_by_status()}

    def readiness_error(self) -> str | None:
        """Return why requests cannot be answered now; `None` when they can."""
        if self._closed or not self.scoring.alive:
            return "the service is stopping"
        if self.scoring.write_error is not None:
            return "unknown inputs could not be stored at the last try"
        return None

    def render_metrics(self) -> bytes:
        """Render the metrics in the text format of Prometheus."""
        try:
            totals: tuple[float, float] = self.unknowns.read_totals()
        except StoreError:
            totals = (math.nan, math.nan)  # the other figures matter most when the store is gone
        return self.metrics.render(*totals, self.scoring.waiting_rows)

    def close(self) -> None:
        """Answer accepted requests, then close the store and release the folder."""
        if self._closed:
            return
        self._closed = True
        self.on_close()
        self.scoring.close()
        self.unknowns.close()
        self._folder_lock.release()
