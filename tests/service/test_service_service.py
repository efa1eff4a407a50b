"""The service in one process: batches, groups of commits, another guard under load, an orderly end, failures."""

from __future__ import annotations

import io
import json
import threading

import numpy as np
import pytest
import torch
from service_kit import CLASSES, KNOWN, UNKNOWN, WIDTH, guard_of, make_guard, make_network

import offmap
from offmap.detection import Verdicts
from offmap.detection.verdicts import limit_scores
from offmap.errors import InputError, StoreError
from offmap.service import Deployment, ScoringRequest, Service, Settings
from offmap.service.images import decode_images
from offmap.service.request_errors import RequestError


@pytest.fixture
def make(tmp_path):
    made = []

    def build(guard=None, network=None, names=None, load=None, **limits):
        made.append(
            Service(Deployment(guard or make_guard(), network, names), Settings(store=str(tmp_path), **limits), load)
        )
        return made[-1]

    yield build
    for service in made:
        service.close()


class Held:
    """A database that lets no commit through before it is told to, or fails as told."""

    def __init__(self, database):
        self._database, self.open, self.error, self.commits = database, threading.Event(), None, 0
        self.open.set()

    def transaction(self):
        self.open.wait()
        self.commits += 1
        if self.error is not None:
            raise self.error
        return self._database.transaction()

    def snapshot(self):
        return self._database.snapshot()

    def close(self):
        self._database.close()


def test_results_are_the_guards_verdicts(make):
    guard = make_guard()
    rows = np.random.default_rng(0).normal(2, 2, size=(50, WIDTH)).astype(np.float32)
    expected = guard(rows)
    results = make(guard).score(features=rows)
    np.testing.assert_allclose([row["score"] for row in results], expected.score, rtol=1e-6)
    assert [row["known"] for row in results] == expected.known.tolist()
    assert [row["p_value"] for row in results] == expected.p_value.tolist()
    assert [row["class"] for row in results] == expected.predicted.tolist()


def test_without_a_head_there_is_no_class(make):
    known = offmap.Activations(np.random.default_rng(0).normal(size=(200, WIDTH)))
    service = make(offmap.detector("knn(3)").fit(known[:100]).calibrate(known[100:]))
    assert service.score(features=KNOWN)[0]["class"] is None


def test_by_class_thresholds_and_names(make):
    rng = np.random.default_rng(0)
    rows = rng.random((400, WIDTH)) + 4 * np.eye(WIDTH)[np.arange(400) % CLASSES]
    known = offmap.Activations(rows, head=offmap.Head(np.eye(WIDTH)[:CLASSES]))
    guard = offmap.detector("energy").fit(known[:200]).calibrate(known[200:], tpr=0.9, by_class=True)
    service = make(guard, names=["ant", "bee", "cat"])
    assert service.score(features=KNOWN)[0]["class"] == "ant"
    assert service.describe()["thresholds"].keys() == {"ant", "bee", "cat"}
    assert service.describe()["threshold"] is None


def test_an_answer_waits_for_the_commit_and_many_answers_for_one(make):
    service = make()
    held = service.unknowns.database = Held(service.unknowns.database)
    held.open.clear()
    first = service.submit(ScoringRequest("features", UNKNOWN))
    others = [service.submit(ScoringRequest("features", UNKNOWN)) for _ in range(30)]
    known = service.submit(ScoringRequest("features", KNOWN))
    assert known.result(10)[0]["known"]  # what need not be kept need not wait
    assert not any(future.done() for future in (first, *others))
    held.open.set()
    ids = {future.result(10)[0]["id"] for future in (first, *others)}
    assert len(ids) == 31 == service.unknowns.read_totals()[0]
    assert held.commits < 10


def test_what_cannot_be_stored_is_not_acknowledged_and_the_service_recovers(make):
    service = make()
    held = service.unknowns.database = Held(service.unknowns.database)
    held.error = StoreError("disk full")
    with pytest.raises(RequestError, match="could not be stored") as caught:
        service.score(features=UNKNOWN + KNOWN)
    assert caught.value.status == 503
    assert service.readiness_error() is not None
    assert service.score(features=KNOWN)[0]["known"]
    held.error = None
    assert not service.score(features=UNKNOWN)[0]["known"]
    assert service.readiness_error() is None
    assert service.unknowns.read_totals()[0] == 1


def test_too_much_waiting_is_refused(make):
    service = make(max_waiting=5)
    stopped, go = threading.Event(), threading.Event()
    score = service.scoring._score

    def slow(batch):
        stopped.set()
        go.wait()
        return score(batch)

    service.scoring._score = slow
    first = service.submit(ScoringRequest("features", KNOWN))
    stopped.wait()
    waiting = service.submit(ScoringRequest("features", KNOWN * 5))
    with pytest.raises(RequestError, match="wait to be scored") as caught:
        service.submit(ScoringRequest("features", KNOWN))
    assert caught.value.status == 503
    go.set()
    assert len(first.result(10)) == 1
    assert len(waiting.result(10)) == 5


def test_concurrent_requests_are_scored_together_and_a_bad_one_by_itself(make):
    """Requests that wait become one batch; when the network refuses it, each is tried alone."""
    network = make_network()
    service = make(guard_of(network), network)
    sizes, score = [], service.scoring._score
    stopped, go = threading.Event(), threading.Event()

    def counting(batch):
        sizes.append(len(batch))
        stopped.set()
        go.wait()
        return score(batch)

    service.scoring._score = counting
    good = np.random.default_rng(0).random((1, 3, 4, 4))
    first = service.submit(ScoringRequest("inputs", good))
    stopped.wait()
    others = [service.submit(ScoringRequest("inputs", good)) for _ in range(9)]
    bad = service.submit(ScoringRequest("inputs", np.ones((1, 3, 5, 5))))
    signs = np.sign(network.model[1].weight[0].detach().numpy()).reshape(1, 3, 4, 4)
    huge = service.submit(ScoringRequest("inputs", 3e38 * signs))  # finite, but no longer behind the first layer
    go.set()
    scores = {future.result(10)[0]["score"] for future in (first, *others)}
    assert max(scores) - min(scores) < 1e-6
    for future in (bad, huge):
        with pytest.raises(InputError):
            future.result(10)
    assert sizes[0] == 1
    assert 10 in sizes, "all that waited and had one shape, the huge one too"


def test_an_infinite_score_is_unknown_and_kept_and_never_in_json(make):
    rows = np.random.default_rng(0).normal(2, 1, size=(200, WIDTH)).astype(np.float32)
    acts = offmap.Activations(rows)
    service = make(offmap.detector("knn(3)").fit(acts[:100]).calibrate(acts[100:]))
    results = service.score(features=[[0.0] * WIDTH, *rows[:2].tolist()])
    assert [row["known"] for row in results] == [False, True, True]
    json.dumps(results, allow_nan=False)
    (item,) = service.unknowns.get([results[0]["id"]])
    assert np.isfinite(item.score)
    assert item.p_value == pytest.approx(1 / 101)
    json.dumps(service.summarize(), allow_nan=False)


def test_infinite_calibration_scores_do_not_break_the_figures(make):
    rows = np.random.default_rng(0).normal(2, 1, size=(200, WIDTH)).astype(np.float32)
    rows[100:120] = 0
    acts = offmap.Activations(rows)
    guard = offmap.detector("knn(3)").fit(acts[:100]).calibrate(acts[100:])
    assert np.isinf(guard.calibration.scores).sum() == 20, "chosen so"
    service = make(guard)
    results = service.score(features=rows[95:105])
    assert not any(row["known"] for row in results[5:]), "-inf is never known, also where many known inputs score so"
    for figures in (results, service.summarize(), service.describe()):
        json.dumps(figures, allow_nan=False)


def test_a_score_of_plus_infinity_is_never_known():
    scores = np.array([np.inf, 2.0, -np.inf])
    limited = limit_scores(Verdicts(scores, np.array([1.0, 0.5, 0.1]), np.array([True, True, True])), 9)
    assert limited.known.tolist() == [False, True, False]
    assert limited.p_value.tolist() == [0.1, 0.5, 0.1]
    assert np.isfinite(limited.score).all()


def test_a_lack_of_memory_is_not_the_fault_of_the_image(monkeypatch):
    from PIL import Image, ImageOps

    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "PNG")

    def fail(_):
        raise MemoryError

    monkeypatch.setattr(ImageOps, "exif_transpose", fail)
    with pytest.raises(RequestError, match="not enough memory") as caught:
        decode_images([out.getvalue()], Settings())
    assert caught.value.status == 503


def test_large_requests_are_run_in_batches(make):
    network = make_network()
    seen = []
    network.model[0].register_forward_hook(lambda *args: seen.append(len(args[1][0])))
    service = make(guard_of(network), network, max_batch=16)
    seen.clear()
    inputs = np.random.default_rng(0).random((100, 3, 4, 4))
    results = service.score(inputs=inputs)
    assert max(seen) == 16
    np.testing.assert_allclose(
        [r["score"] for r in results], service.deployment.detector(network(inputs)).score, rtol=1e-5
    )


def test_a_network_that_works_in_place_does_not_change_what_is_kept(make):
    network = offmap.Network(torch.nn.Sequential(torch.nn.ReLU(inplace=True), *make_network().model))
    service = make(guard_of(network), network)
    inputs = np.full((1, 3, 4, 4), -1.0, np.float32)
    inputs.flags.writeable = False
    (result,) = service.score(inputs=inputs)
    assert not result["known"]
    (item,) = service.unknowns.get([result["id"]])
    np.testing.assert_array_equal(np.load(io.BytesIO(item.content)), inputs[0])


def test_another_guard_under_load_loses_no_request(make):
    """Also one of another width: what was accepted before is answered by the old guard."""
    service = make()
    failures, answered, stop = [], [], threading.Event()

    def ask(width):
        row = [[5.0] + [0.0] * (width - 1)]
        while not stop.is_set():
            try:
                answered.append((width, len(service.submit(ScoringRequest("features", row)).result(10))))
            except InputError as error:
                if "features per row" not in str(error):  # rejected before it is accepted, not lost
                    failures.append(error)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=ask, args=(width,)) for width in (WIDTH, WIDTH + 2) * 2]
    for thread in threads:
        thread.start()
    versions = {service.deploy(Deployment(make_guard(seed, width=WIDTH + 2 * (seed % 2)))) for seed in range(1, 30)}
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(versions) == 29
    assert {width for width, _ in answered} == {WIDTH, WIDTH + 2}
    assert (
        f'guard_info{{detector="energy",version="{service.deployment.version}"}}'.encode() in service.render_metrics()
    )


def test_reload_reads_the_file_again_or_keeps_the_old_guard(make, tmp_path):
    file = tmp_path / "guard.offmap"
    make_guard(1).save(file)
    service = make(offmap.load(file), load=lambda: Deployment(offmap.load(file)))
    old = service.deployment.version
    make_guard(2).save(file)
    assert service.reload() != old
    new = service.deployment.version
    file.write_bytes(b"broken")
    with pytest.raises(StoreError):
        service.reload()
    assert service.deployment.version == new
    with pytest.raises(RequestError):
        Service.reload(make_without_file(tmp_path))


def make_without_file(tmp_path):
    service = Service(Deployment(make_guard()), Settings(store=str(tmp_path / "other")))
    service.close()
    return service


def test_closing_answers_everything_that_was_accepted(make):
    service = make()
    futures = [service.submit(ScoringRequest("features", UNKNOWN * 3)) for _ in range(50)]
    service.close()
    assert all(len(future.result(0)) == 3 for future in futures)
    with pytest.raises(RequestError, match="stopping"):
        service.submit(ScoringRequest("features", KNOWN))
    assert service.readiness_error() is not None


def test_drift_and_shares_are_measured(make):
    service = make(drift_alpha=0.001)
    rng = np.random.default_rng(0)
    rows = rng.random((600, WIDTH)) + 4 * np.eye(WIDTH)[np.arange(600) % CLASSES]
    service.score(features=rows)
    calm = service.metrics.summarize()
    assert not calm["drift"]["alarm"]
    assert calm["unknown_share"] < 0.15
    service.score(features=rows - 1)
    moved = service.metrics.summarize()
    assert moved["drift"]["alarm"]
    assert b"offmap_drift_alarm 1.0" in service.render_metrics()
    assert moved["unknown_share"] > 0.3
    assert moved["scored"] == 1200
    service.deploy(Deployment(make_guard(3)))
    assert not service.metrics.summarize()["drift"]["alarm"]


def test_dropped_items_are_counted(make):
    service = make(pile_items=4)
    service.score(features=UNKNOWN * 10)
    text = service.render_metrics()
    assert b'offmap_pile_dropped_total{reason="size"} 6.0' in text
    assert b"offmap_pile_items 4.0" in text


def test_two_services_do_not_share_a_folder(make, tmp_path):
    make()
    with pytest.raises(StoreError, match="another service"):
        Service(Deployment(make_guard()), Settings(store=str(tmp_path)))


def test_what_cannot_serve_is_refused_at_the_start(tmp_path):
    where = Settings(store=str(tmp_path))
    known = offmap.Activations(np.eye(4), head=offmap.Head(np.eye(4)))
    with pytest.raises(InputError, match="calibrate"):
        Deployment(offmap.detector("energy").fit(known))
    with pytest.raises(InputError, match="class names"):
        Deployment(make_guard(), None, ["one"])
    with pytest.raises(InputError, match="same name"):
        Deployment(make_guard(), None, ["a", "a", "b"])
    with Service(Deployment(make_guard()), where) as service, pytest.raises(InputError, match="inputs or texts"):
        service.score()


@pytest.mark.parametrize(
    ("dtype", "rows", "match"),
    [("int64", [[0.5]], "whole numbers"), ("uint8", [[300]], "beyond"), ("uint8", [[-1]], "beyond")],
)
def test_inputs_of_the_wrong_kind_are_refused(make, dtype, rows, match):
    network = make_network()
    service = make(guard_of(network), network, input_dtype=dtype)
    with pytest.raises(InputError, match=match):
        service.score(inputs=rows)


def test_an_onnx_network_is_served_and_its_file_not_named(make, tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs pip install 'offmap[onnx]'")
    pytest.importorskip("onnxruntime", reason="needs pip install 'offmap[onnx]'")
    weight = onnx.numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32)[:, :CLASSES].copy(), "w")
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])
        for name, width in (("x", WIDTH), ("y", CLASSES))
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "linear", ends[:1], ends[1:], [weight]
    )
    file = tmp_path / "secret-place.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    service = make(make_guard(), offmap.Network.onnx(file))
    as_inputs = service.score(inputs=KNOWN + UNKNOWN)
    as_features = service.score(features=KNOWN + UNKNOWN)
    assert [row["score"] for row in as_inputs] == pytest.approx([row["score"] for row in as_features])
    with pytest.raises(InputError, match="does not take inputs of shape 5×5") as caught:
        service.score(inputs=np.ones((1, 5, 5)))
    assert "secret-place" not in str(caught.value)


def test_a_declared_shape_is_kept(make):
    network = make_network()
    service = make(guard_of(network), network, input_shape=(3, 4, 4))
    assert len(service.score(inputs=np.ones((2, 3, 4, 4)))) == 2
    with pytest.raises(InputError, match="takes 3×4×4"):
        service.score(inputs=np.ones((2, 48)))
