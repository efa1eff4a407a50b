"""Send every unknown input to an HTTP sink as a CloudEvent; the store of unknown inputs is the outbox.

An input is on disk before it is answered, and a position on disk says up to where the sink has confirmed. So events
survive a crash of either side; one may be sent twice then, with the same id. Of replicas on one database, one sends.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offmap.errors import InputError, OffmapError
from offmap.service.outgoing import check_address, hide_passwords, post
from offmap.service.stores import PostgresDatabase
from offmap.service.unknown_inputs import UnknownInput
from offmap.service.unknowns import UnknownStore
from offmap.store import write_atomically

TYPE = "org.offmap.input.unknown"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
_PAGE = 100
_MAX_POSITION = 2**63 - 1
_LOCK = 0x6F66666D6175  # advisory lock of PostgreSQL
_LONGEST_WAIT = 60.0
_POST_SECONDS = 30.0
_STOP_SECONDS = 5.0
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


class FilePosition:
    """Up to where the sink has confirmed, in a file of a service that is alone.

    The file names the last input too: positions begin anew in a store that was made anew or put back from a copy, and
    its inputs would be taken for those that were sent.

    Parameters
    ----------
    file : Path
        Written whole or not at all.
    store : UnknownStore
        Whose positions it holds.
    """

    def __init__(self, file: Path, store: UnknownStore) -> None:
        self.file, self._store = file, store

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Tell whether this service may send now: always."""
        yield True

    def read(self) -> int:
        """Read the position; 0 at first, and where the file cannot be read or is of another store."""
        try:
            kept = json.loads(self.file.read_text())
            after, id = int(kept["after"]), kept.get("id")
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            _log.warning("%s: cannot be read; events are sent again from the first", self.file)
            return 0
        if after < 1 or after > _MAX_POSITION or self._is_of_another_store(after, id):
            _log.warning("%s: not the position of this store; events are sent again from the first", self.file)
            return 0
        return after

    def _is_of_another_store(self, after: int, id: str | None) -> bool:
        found = self._store.find_next(after)
        if found is None:
            return self._store.find_next(0) is not None  # all inputs came before the one that was sent last
        return id is not None and found[0] == after and found[1] != id

    def write(self, item: UnknownInput) -> None:
        """Write that everything up to an input is confirmed."""
        write_atomically(self.file, json.dumps({"after": item.seq, "id": item.id}).encode())


class SharedPosition:
    """The same for replicas on one PostgreSQL database, of which one sends at a time.

    Parameters
    ----------
    database : PostgresDatabase
        That of the unknown inputs.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        with database.transaction() as session:
            session.execute("SELECT 1 FROM pg_advisory_xact_lock(?)", [_LOCK + 1])
            session.execute("CREATE TABLE IF NOT EXISTS sent (after BIGINT NOT NULL)")
            if not session.execute("SELECT after FROM sent"):
                session.execute("INSERT INTO sent VALUES (0)")

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Tell whether this replica may send now; if so, no other does until the block is left."""
        release = self._database.hold(_LOCK, wait=False)
        try:
            yield release is not None
        finally:
            if release is not None:
                release()

    def read(self) -> int:
        """Read the position; 0 at first."""
        with self._database.snapshot() as session:
            return int(session.execute("SELECT after FROM sent")[0][0])

    def write(self, item: UnknownInput) -> None:
        """Write that everything up to an input is confirmed."""
        with self._database.transaction() as session:
            session.execute("UPDATE sent SET after = ?", [item.seq])


class EventPublisher:
    """Send events in the order of arrival, on a thread of its own, until `stop`.

    Parameters
    ----------
    store : UnknownStore
        The outbox.
    url : str
        Where events are posted, ``http://`` or ``https://``.
    position : Path, FilePosition or SharedPosition
        Where it is kept up to where the sink has confirmed; a path is a file.
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
        position: Path | FilePosition | SharedPosition,
        source: str = "/offmap",
        token: str | None = None,
        seconds: float = 1.0,
    ) -> None:
        try:
            check_address(url)
        except ValueError as error:
            raise InputError(f"events_url={hide_passwords(url)}: {error}") from error
        self.store, self.url, self.source = store, url, source
        self.position = FilePosition(position, store) if isinstance(position, Path) else position
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
            self._thread.join(_STOP_SECONDS)  # a sink may be slow; what it has not confirmed is sent again

    def read_position(self) -> int:
        """Read up to which position of the store the sink has confirmed; 0 at first."""
        return self.position.read()

    def publish(self) -> int:
        """Send what the store holds beyond the position and return how many were confirmed or refused for good.

        Raises
        ------
        OSError
            If the sink cannot be reached or says that it cannot take events now.
        """
        with self.position.hold() as mine:
            return self._publish() if mine else 0

    def _publish(self) -> int:
        sent, after = 0, self.position.read()
        while not self._stopped.is_set():
            page = self.store.read_page(_PAGE, after)
            for item in page.items:
                if self._stopped.is_set():
                    return sent
                self._post(make_event(item, self.source))
                after, sent = item.seq, sent + 1
                self.position.write(item)
            if page.next is None:
                break
        return sent

    def _post(self, event: dict[str, Any]) -> None:
        status, _ = post(self.url, json.dumps(event).encode(), self._headers, _POST_SECONDS)
        if 200 <= status < 300:
            return
        if 400 <= status < 500 and status not in _TRY_AGAIN:
            _log.error("the sink of events refuses %s with %s; it is left out", event["id"], status)
            return
        raise ConnectionError(f"the sink of events answers {status}")  # also a redirect, behind which nobody may listen

    def _run(self) -> None:
        wait = self.seconds
        while not self._stopped.wait(wait):
            try:
                self.publish()
                wait = self.seconds
            except (OSError, OffmapError) as error:
                wait = min(2 * wait, _LONGEST_WAIT)
                _log.warning("events wait for %g seconds: %s", wait, error)
            except Exception:  # whatever it is, this thread must go on
                wait = _LONGEST_WAIT
                _log.exception("events wait for %g seconds", wait)


def start_publisher(service: Any) -> Callable[[], None]:
    """Start sending events if the settings name a sink, and return what stops it."""
    settings = service.settings
    if settings.events_url is None:
        return lambda: None
    database = service.unknowns.database
    token = None if settings.events_token is None else settings.events_token.get_secret_value()
    publisher = EventPublisher(
        service.unknowns,
        settings.events_url,
        SharedPosition(database) if isinstance(database, PostgresDatabase) else service.store_dir / "events.json",
        settings.events_source,
        token,
        settings.events_seconds,
    )
    publisher.start()
    return publisher.stop
