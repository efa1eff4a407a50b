"""Traces and metrics arrive at a real OTLP receiver, from a real process of the service."""

from __future__ import annotations

import gzip
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from service_kit import UNKNOWN, make_guard, wait_until

from offmap.errors import DependencyError
from offmap.service import Deployment, Service, Settings
from offmap.service.telemetry import Telemetry, start_telemetry

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """Takes what is posted to ``/v1/traces`` and ``/v1/metrics``."""

    def __init__(self) -> None:
        self.spans: list = []
        self.values: dict[str, float] = {}
        self.names: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.names |= {one.value.string_value for one in resource.resource.attributes}
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            return
        assert path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (one for scope in resource.scope_metrics for one in scope.metrics):
                points = metric.sum.data_points or metric.gauge.data_points
                self.values[metric.name] = sum(point.as_double or point.as_int for point in points)


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_requests_become_spans_and_metrics_arrive_under_their_names(launcher, collector, tmp_path):
    server = launcher.start(tmp_path, otel_url=collector.url + "/", otel_name="fish-guard", otel_seconds=3600)
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    assert server.call("POST", "/v1/score", {"features": UNKNOWN}, {"traceparent": parent})[0] == 200
    assert server.call("GET", "/v1/unknowns/none")[0] == 404
    assert server.call("GET", "/healthz")[0] == 200
    server.end(signal.SIGTERM)  # what is left is sent
    wait_until(lambda: len(collector.spans) == 2 and collector.values)
    by_name = {span.name: span for span in collector.spans}
    assert set(by_name) == {"POST /v1/score", "GET /v1/unknowns/{id}"}
    assert by_name["POST /v1/score"].trace_id.hex() == TRACE
    facts = {one.key: one.value for one in by_name["GET /v1/unknowns/{id}"].attributes}
    assert facts["http.response.status_code"].int_value == 404
    assert "fish-guard" in collector.names
    assert collector.values["offmap_pile_items"] == len(UNKNOWN)
    assert collector.values["offmap_requests_total"] >= 3
    assert any(name.endswith("_count") for name in collector.values)


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("offmap.service.telemetry._STOP_SECONDS", 0.1)
    answered = threading.Event()
    with Service(Deployment(make_guard()), Settings(store=str(tmp_path), otel_url="http://127.0.0.1:9")) as service:
        made = Telemetry(service)
        shutdown = made._tracing.shutdown
        monkeypatch.setattr(made._tracing, "shutdown", lambda: answered.wait(60) and shutdown())
        made.close()
        assert not answered.is_set()
    answered.set()


def test_it_is_off_by_default_and_what_is_missing_is_named(tmp_path, monkeypatch):
    app = object()
    with Service(Deployment(make_guard()), Settings(store=str(tmp_path / "a"))) as service:
        wrap, stop = start_telemetry(service)
        assert wrap(app) is app
        stop()
    settings = Settings(store=str(tmp_path / "c"), otel_url="http://collector")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with (
        Service(Deployment(make_guard()), settings) as service,
        pytest.raises(DependencyError, match=r"pip install 'offmap\[otel\]'"),
    ):
        start_telemetry(service)
