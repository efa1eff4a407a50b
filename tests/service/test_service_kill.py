"""A server killed at random points: what it acknowledged is there, and its store opens every time."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from urllib.parse import urlsplit

from service_kit import KNOWN, UNKNOWN, wait_until

from offmap.service import open_unknown_store


class Client(threading.Thread):
    """Sends as fast as it can, and remembers every unknown input that was acknowledged."""

    def __init__(self, url, number):
        super().__init__()
        self.url, self.number, self.acknowledged, self.stopping = url, number, [], False

    def run(self):
        where = urlsplit(self.url)
        rng = random.Random(self.number)
        try:
            connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
            while not self.stopping:
                rows = [rng.choice(KNOWN + UNKNOWN) for _ in range(rng.randint(1, 20))]
                connection.request("POST", "/v1/score", json.dumps({"features": rows}))
                answer = connection.getresponse()
                results = json.loads(answer.read())["results"]
                assert answer.status == 200
                self.acknowledged += [result["id"] for result in results if not result["known"]]
        except (OSError, http.client.HTTPException, ValueError):
            pass  # killed in the middle: what was not answered whole was not acknowledged


def kill_often(launcher, store, times, seed, **settings):
    rng = random.Random(seed)
    acknowledged: set[str] = set()
    for _ in range(times):
        server = launcher.start(store, pile_items=10**6, **settings)
        clients = [Client(server.url, rng.random()) for _ in range(4)]
        for client in clients:
            client.start()
        enough = rng.randint(0, 40)
        wait_until(lambda: sum(len(client.acknowledged) for client in clients) >= enough)  # noqa: B023 - used at once
        time.sleep(rng.uniform(0.0, 0.02))
        server.end()
        for client in clients:
            client.join()
            acknowledged.update(client.acknowledged)
        unknowns = open_unknown_store(store)
        kept = [item.id for block in unknowns.iter_blocks(status=None, contents=False) for item in block]
        assert len(kept) == len(set(kept)) == unknowns.read_totals()[0]
        unknowns.close()
        assert acknowledged <= set(kept), f"lost {len(acknowledged - set(kept))} of {len(acknowledged)}"
    assert len(acknowledged) > 10 * times, "the clients must have come far enough to lose something"


def test_nothing_acknowledged_is_lost_in_fifty_kills(launcher, tmp_path):
    kill_often(launcher, tmp_path, 50, seed=1)


def test_nothing_acknowledged_is_lost_in_postgresql(launcher, database, tmp_path):
    kill_often(launcher, database, 10, seed=2, folder=str(tmp_path / "own"))


def test_a_server_killed_while_it_makes_its_store_leaves_one_that_opens(launcher, tmp_path):
    for wait in (0.0, 0.005, 0.02):
        store = tmp_path / str(wait)
        server = launcher.start(store)
        time.sleep(wait)
        server.end()
        open_unknown_store(store).close()
