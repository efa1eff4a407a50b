"""Send every unknown input to an HTTP sink as a CloudEvent; the store of unknown inputs is the outbox.

An input is on disk before it is answered, and a position on disk says up to where the sink has confirmed. So events
survive a crash of either side; one may be sent twice, with the same id.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offmap.errors import InputError, OffmapError
from offmap.service.unknown_inputs import UnknownInput
from offmap.service.unknowns import UnknownStore
from offmap.store import write_atomically

TYPE = "org.offmap.input.unknown"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
_PAGE = 100
_LONGEST_WAIT = 60.0
_TRY_AGAIN = (408, 425, 429)  # refusals that say: not now
_log = logging.getLogger(__name__)


def make_event(item: UnknownInput, source: str) -> dict[str, Any]:
    """Describe an unknown input as a CloudEvent, version 1.0; the input itself is at ``/v1/unknowns/{id}``.

    Examples
    --------
    >>> event = make_event(UnknownInput("a1", 0.0, -3.0, 0.01, guard="v1", reference="x.png"), "/offmap")
    >>> event["id"], event["time"], event["data"]["score"]
    ('a1', '1970-01-01T00:00:00+00:00', -3.0)
    """
    event = {
        "specversion": "1.0",
        "id": item.id,
        "source": source,
        "type": TYPE,
        "time": datetime.fromtimestamp(item.time, UTC).isoformat(),
        "datacontenttype": "application/json",
        "data": {
            "id": item.id,
            "score": item.score,
            "p_value": item.p_value,
            "class": item.predicted,
            "guard": item.guard,
            "reference": item.reference,
            "content_type": item.content_type,
        },
    }
    return event if item.reference is None else event | {"subject": item.reference}


class EventPublisher:
    """Send events in the order of arrival, on a thread of its own, until `stop`.

    Parameters
    ----------
    store : UnknownStore
        The outbox.
    url : str
        Where events are posted, ``http://`` or ``https://``.
    position : Path
        The file that says up to where the sink has confirmed.
    source : str, default="/offmap"
        The events' source.
    token : str or None, default=None
        Sent as a bearer token.
    seconds : float, default=1.0
        How long to wait for new inputs, and after the first failure; twice as long after each further one, a minute at
        most.
    """

    def __init__(
        self,
        store: UnknownStore,
        url: str,
        position: Path,
        source: str = "/offmap",
        token: str | None = None,
        seconds: float = 1.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"events_url={url}: an address that begins with http:// or https:// is needed")
        self.store, self.url, self.position, self.source = store, url, position, source
        self._headers = {"Content-Type": CONTENT_TYPE}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self.seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offmap-events", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; what is not confirmed is sent after the next start."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def read_position(self) -> int:
        """Read up to which position of the store the sink has confirmed; 0 at first."""
        try:
            found = json.loads(self.position.read_text())["after"]
            return int(found)
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError):
            _log.warning("%s: cannot be read; events are sent again from the first", self.position)
            return 0

    def publish(self) -> int:
        """Send what the store holds beyond the position and return how many were confirmed or refused for good.

        Raises
        ------
        OSError
            If the sink cannot be reached or says that it cannot take events now.
        """
        sent, after = 0, self.read_position()
        while not self._stopped.is_set():
            page = self.store.read_page(_PAGE, after)
            for item in page.items:
                if self._stopped.is_set():
                    return sent
                self._post(make_event(item, self.source))
                after, sent = item.seq, sent + 1
                write_atomically(self.position, json.dumps({"after": after}).encode())
            if page.next is None:
                break
        return sent

    def _post(self, event: dict[str, Any]) -> None:
        request = urllib.request.Request(self.url, json.dumps(event).encode(), self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            if 400 <= error.code < 500 and error.code not in _TRY_AGAIN:
                _log.error("the sink of events refuses %s with %s; it is left out", event["id"], error.code)
                return
            raise

    def _run(self) -> None:
        wait = self.seconds
        while not self._stopped.wait(wait):
            try:
                self.publish()
                wait = self.seconds
            except (OSError, OffmapError) as error:
                wait = min(2 * wait, _LONGEST_WAIT)
                _log.warning("events wait for %g seconds: %s", wait, error)


def start_publisher(service: Any) -> Callable[[], None]:
    """Start sending events if the settings name a sink, and return what stops it."""
    settings = service.settings
    if settings.events_url is None:
        return lambda: None
    token = None if settings.events_token is None else settings.events_token.get_secret_value()
    publisher = EventPublisher(
        service.unknowns,
        settings.events_url,
        service.store_dir / "events.json",
        settings.events_source,
        token,
        settings.events_seconds,
    )
    publisher.start()
    return publisher.stop
