"""Traces and metrics for an OpenTelemetry collector, sent over HTTP when the settings name one."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offmap import __version__
from offmap.errors import DependencyError
from offmap.service.service import Service

_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"})
_STOP_SECONDS = 5.0
_FRESH_SECONDS = 0.5  # the instruments of one collection are read from one rendering
_PARTS = {"histogram": ("_count", "_sum", "_bucket"), "counter": ("_total",), "gauge": ("",)}
_USED = {
    "exporter.otlp.proto.http.metric_exporter": ("OTLPMetricExporter",),
    "exporter.otlp.proto.http.trace_exporter": ("OTLPSpanExporter",),
    "metrics": ("Observation",),
    "propagate": ("extract",),
    "sdk.metrics": ("MeterProvider",),
    "sdk.metrics.export": ("PeriodicExportingMetricReader",),
    "sdk.resources": ("Resource",),
    "sdk.trace": ("TracerProvider",),
    "sdk.trace.export": ("BatchSpanProcessor",),
    "trace": ("SpanKind", "StatusCode"),
}


class Telemetry:
    """Sends a span per request, and the metrics of ``/metrics`` under their names there.

    Parameters
    ----------
    service : Service
        Its settings name the collector.

    Raises
    ------
    DependencyError
        If OpenTelemetry is not installed.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings
        url = (settings.otel_url or "").rstrip("/")
        otel = _import_opentelemetry()
        resource = otel.Resource.create({"service.name": settings.otel_name, "service.version": __version__})
        self._tracing = otel.TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracing.add_span_processor(otel.BatchSpanProcessor(otel.OTLPSpanExporter(f"{url}/v1/traces")))
        reader = otel.PeriodicExportingMetricReader(
            otel.OTLPMetricExporter(f"{url}/v1/metrics"), export_interval_millis=1000 * settings.otel_seconds
        )
        self._metering = otel.MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._otel = otel
        self._tracer = self._tracing.get_tracer("offmap", __version__)
        self._service = service
        self._read: tuple[float, dict[str, list[Any]]] = (0.0, {})
        self._add_instruments()

    def trace(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application: each request but probes becomes a span, below that of a caller who names one."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in _UNTRACED:
                await app(scope, receive, send)
                return
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            parent, kind = self._otel.extract(headers), self._otel.SpanKind.SERVER
            method = scope["method"] if scope["method"] in _METHODS else "_OTHER"  # a client may make up any number
            with self._tracer.start_as_current_span(method, parent, kind) as span:
                span.set_attribute("http.request.method", method)

                async def watch(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        self._finish(span, method, scope, message["status"])
                    await send(message)

                await app(scope, receive, watch)

        return traced

    def close(self) -> None:
        """Send what is left, and stop; a collector that does not answer is not waited for."""
        ending = [threading.Thread(target=one.shutdown, daemon=True) for one in (self._tracing, self._metering)]
        for thread in ending:
            thread.start()
        end = time.monotonic() + _STOP_SECONDS
        for thread in ending:
            thread.join(max(end - time.monotonic(), 0))

    def _finish(self, span: Any, method: str, scope: Scope, status: int) -> None:
        route = getattr(scope.get("route"), "path", None)  # with names for what varies, such as ids
        if route is not None:
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(self._otel.StatusCode.ERROR)

    def _add_instruments(self) -> None:
        meter = self._metering.get_meter("offmap", __version__)
        for family in self._families():
            for part in _PARTS.get(family.type, ()):
                name = family.name + part
                make = meter.create_observable_gauge if family.type == "gauge" else meter.create_observable_counter
                make(name, callbacks=[self._make_callback(name)], description=family.documentation)

    def _make_callback(self, name: str) -> Callable[[Any], Iterator[Any]]:
        def observe(_: Any) -> Iterator[Any]:
            if time.monotonic() - self._read[0] > _FRESH_SECONDS:
                samples: dict[str, list[Any]] = {}
                for family in self._families():
                    for sample in family.samples:
                        samples.setdefault(sample.name, []).append(sample)
                self._read = time.monotonic(), samples
            for sample in self._read[1].get(name, ()):
                yield self._otel.Observation(sample.value, sample.labels)

        return observe

    def _families(self) -> Iterable[Any]:
        return text_string_to_metric_families(self._service.render_metrics().decode())


def start_telemetry(service: Service) -> tuple[Callable[[ASGIApp], ASGIApp], Callable[[], None]]:
    """Start telemetry if the settings name a collector; return what wraps the application, and what stops it."""
    if service.settings.otel_url is None:
        return lambda app: app, lambda: None
    made = Telemetry(service)
    return made.trace, made.close


def _import_opentelemetry() -> Any:
    """Import what is used of OpenTelemetry, as one namespace."""
    try:
        modules = {module: importlib.import_module(f"opentelemetry.{module}") for module in _USED}
    except ImportError as error:
        raise DependencyError(
            "OFFMAP_OTEL_URL needs OpenTelemetry, which is not installed: pip install 'offmap[otel]'"
        ) from error
    return SimpleNamespace(**{name: getattr(modules[module], name) for module in _USED for name in _USED[module]})
