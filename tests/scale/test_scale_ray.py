"""Fitting and scoring on a real local Ray cluster, with a worker killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import offmap
from offmap import store
from offmap.activations import Activations, Head
from offmap.errors import InputError
from offmap.scale import Source, fit, make_serve_app, score
from offmap.scale.serving import GuardReplica

REASON = "needs Ray: pip install 'offmap[ray]'"
ray = pytest.importorskip("ray", reason=REASON)
psutil = pytest.importorskip("psutil", reason=REASON)
pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'offmap[data]'")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'offmap[data]'")

HEAD = Head(np.random.default_rng(9).normal(size=(5, 16)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)  # of this cluster alone, and not in the user's home
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 * 2**20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    del os.environ["RAY_AUTH_TOKEN_PATH"]


@pytest.fixture(scope="module")
def known():
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=3000)
    features = np.maximum(rng.normal(size=(3000, 16)) + 2 * np.eye(16)[labels], 0).astype(np.float32)
    return Activations(features, head=HEAD, labels=labels)


@pytest.fixture(scope="module")
def shards(known, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    paths = []
    for number, start in enumerate(range(0, 3000, 750)):
        part = known[start : start + 750]
        if number % 2:
            paths.append(folder / f"part{number}")
            part.save(paths[-1])
        else:
            paths.append(folder / f"part{number}.parquet")
            columns = {"features": pa.array(part.features.tolist(), pa.list_(pa.float32())), "labels": part.labels}
            pq.write_table(pa.table(columns), paths[-1])
    return paths


def tensors(detector, folder):
    file = folder / "saved"
    detector.save(file)
    return store.load(file).tensors


@pytest.mark.parametrize(
    ("spec", "exact"), [("react(90)|energy", True), ("react(90)|knn(20)", True), ("mahalanobis", False)]
)
def test_the_same_detector_as_in_one_process(cluster, known, shards, tmp_path, spec, exact):
    here = offmap.detector(spec).fit(known)
    there = fit(spec, shards, Source(head=HEAD))
    expected, found = tensors(here, tmp_path), tensors(there, tmp_path)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        if exact:
            np.testing.assert_array_equal(found[name], tensor, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], tensor, rtol=1e-4, atol=1e-6, err_msg=name)


def kill_one_worker(name, killed):
    """SIGKILL the first worker of this name that has been at work for a moment."""
    for _ in range(600):
        for process in psutil.process_iter(["pid", "name", "cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if line.startswith("ray::") and name in line:
                os.kill(process.info["pid"], signal.SIGKILL)
                killed.append(line)
                return
        time.sleep(0.05)


def test_a_killed_worker_changes_nothing(cluster, known, shards, tmp_path):
    many = list(shards) * 6
    whole = offmap.detector("react(90)|energy").fit(Activations(np.tile(known.features, (6, 1)), head=HEAD))
    killed = []
    killer = threading.Thread(target=kill_one_worker, args=("_Reader", killed))
    killer.start()
    survived = fit("react(90)|energy", many, Source(head=HEAD))
    killer.join()
    assert killed
    expected, found = tensors(whole, tmp_path), tensors(survived, tmp_path)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)


def test_scores_are_those_of_one_process(cluster, known, shards, tmp_path):
    guard = offmap.detector("energy").fit(known).calibrate(known)
    killed = []
    killer = threading.Thread(target=kill_one_worker, args=("_Scorer", killed))
    killer.start()
    files = score(guard, list(shards) * 4, tmp_path / "scores", Source(head=HEAD))
    killer.join()
    assert killed
    assert len(files) == 16
    assert sorted(os.listdir(tmp_path / "scores")) == [file.name for file in files]
    got = np.concatenate([pq.read_table(file)["score"].to_numpy() for file in files[:4]])
    np.testing.assert_allclose(got, guard.score(known), rtol=1e-6)
    assert pq.read_table(files[0]).column_names[:3] == ["score", "p_value", "known"]


def test_broken_rules_are_named(cluster, shards, tmp_path):
    with pytest.raises(InputError, match="no shards"):
        fit("energy", [])
    with pytest.raises(InputError, match="no such shard"):
        fit("energy", [tmp_path / "none.parquet"])
    with pytest.raises(InputError, match="at least one"):
        fit("energy", shards, workers=0)


def test_a_guard_is_served_by_ray_serve(cluster, known, tmp_path):
    from ray import serve

    calibrated = offmap.detector("react(90)|energy").fit(known[:2000]).calibrate(known[2000:])
    deployment = offmap.openworld.Deployment(calibrated, class_names=list("abcde"))
    deployment.save(tmp_path / "guard.offmap")
    app = make_serve_app(tmp_path / "guard.offmap", num_replicas=1, ray_actor_options={"num_cpus": 0.2})
    port = find_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        handle = serve.run(app, name="guard", route_prefix="/guard")
        rows = [known.features[0].tolist(), [-9.0] * 16]
        expected = deployment.verdicts(np.array(rows, np.float32), "features")
        for answer in (handle.score.remote(rows).result(), post(port, {"features": rows})["results"]):
            assert [row["known"] for row in answer] == expected.known.tolist()
            assert [row["score"] for row in answer] == pytest.approx(expected.score.tolist())
            assert [row["class"] for row in answer] == ["abcde"[label] for label in expected.predicted]
        for wrong in ({}, {"features": [[1.0]]}, {"features": 3}, [1]):
            refused = post(port, wrong)
            assert refused["status"] == 422
            assert refused["error"]
    finally:
        serve.shutdown()


def find_port():
    """A free port below those that systems hand out: one of them may be another connection's a moment later."""
    for port in np.random.default_rng().permutation(np.arange(20_000, 30_000)).tolist():
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def post(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/guard", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error) | {"status": error.code}


def test_a_replica_takes_and_gives_finite_numbers_only(tmp_path):
    rows = np.abs(np.random.default_rng(0).normal(size=(200, 8))).astype(np.float32)
    guard = offmap.detector("knn(3)").fit(offmap.Activations(rows[:100])).calibrate(offmap.Activations(rows[100:]))
    guard.save(tmp_path / "guard.offmap")
    replica = GuardReplica((tmp_path / "guard.offmap").read_bytes())
    (answer,) = replica.score([[0.0] * 8])  # a row of zeros has no direction: its score would be minus infinity
    assert not answer["known"]
    assert np.isfinite(answer["score"])
    for wrong in (float("nan"), float("inf"), 1e300):
        with pytest.raises(InputError, match="only finite numbers are scored"):
            replica.score([[wrong] + [1.0] * 7])


def test_what_cannot_be_served_is_said_before_anything_starts(known, tmp_path):
    offmap.detector("energy").fit(known).save(tmp_path / "bare.offmap")
    with pytest.raises(InputError, match="it has no threshold; calibrate it first"):
        make_serve_app(tmp_path / "bare.offmap")
    offmap.discover(known.features[:60]).save(tmp_path / "found.offmap")
    with pytest.raises(InputError, match="a Discovery cannot be served"):
        make_serve_app(tmp_path / "found.offmap")
