"""Traces from the caller through the job to the receiver of its webhook, as W3C trace context and OTLP.

The context is passed on as two strings, because it outlives the process: it is stored with the job. With tracing off
the caller's context still travels through us unchanged, and nothing of OpenTelemetry is imported.
"""

import re
import threading
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from chargehand.errors import ConfigError
from chargehand.observability.logs import scrub, scrub_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan

Value = str | bool | int | float

EXPORT_TIMEOUT_SECONDS = 5.0
SHUTDOWN_SECONDS = 5.0

_traceparent = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_tracestate = re.compile(r"[ -~]{1,512}")


def configure_tracing(endpoint: str, service_name: str, sample_ratio: float = 1.0) -> "Tracing":
    """Send spans to the OTLP/HTTP collector at this URL; "" turns tracing off."""
    return _Exported(endpoint, service_name, sample_ratio) if endpoint else Tracing()


def trace_context(traceparent: str, tracestate: str) -> tuple[str, str]:
    """Return both values if they are valid; drop an invalid one, and a tracestate without a valid traceparent."""
    if not _traceparent.fullmatch(traceparent):
        return "", ""
    return traceparent, tracestate if _tracestate.fullmatch(tracestate) else ""


class Span:
    """An operation with a duration; an exception that leaves the `with` block marks it as failed. This class records nothing."""

    __slots__ = ("traceparent", "tracestate")

    def __init__(self, traceparent: str, tracestate: str) -> None:
        self.traceparent, self.tracestate = trace_context(traceparent, tracestate) if traceparent else ("", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _frames: object) -> None:
        pass

    def set(self, key: str, value: Value) -> None:
        pass

    def fail(self, error: BaseException | str) -> None:
        pass


class Tracing:
    """Creates spans. In this class tracing is off."""

    def span(
        self, name: str, *, traceparent: str = "", tracestate: str = "", attributes: Mapping[str, Value] | None = None
    ) -> Span:
        """Return a child span of the given context, or the root of a new trace."""
        return Span(traceparent, tracestate)

    def shutdown(self) -> None:
        """Send the remaining spans. Blocks for up to some seconds, so call it in a thread."""


class _Exported(Tracing):
    def __init__(self, endpoint: str, service_name: str, sample_ratio: float) -> None:
        try:
            from opentelemetry.context import Context
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(
                f"tracing needs packages that are missing ({error}): pip install chargehand[otel]"
            ) from None
        url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + "/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_SECONDS)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create({"service.name": service_name}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("chargehand")
        self._propagator = TraceContextTextMapPropagator()
        self._root = Context()  # so that the parent is never the current span, only the given context

    def span(
        self, name: str, *, traceparent: str = "", tracestate: str = "", attributes: Mapping[str, Value] | None = None
    ) -> Span:
        parent, state = trace_context(traceparent, tracestate)
        context = self._propagator.extract({"traceparent": parent, "tracestate": state}, self._root)
        safe = {key: scrub(key, value) for key, value in (attributes or {}).items()}
        return _Recorded(self._tracer.start_span(name, context, attributes=safe))

    def shutdown(self) -> None:
        # The SDK would try for 30 s to reach an unreachable collector.
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(SHUTDOWN_SECONDS)
        if flushing.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _Recorded(Span):
    __slots__ = ("_span",)

    def __init__(self, span: "OtelSpan") -> None:
        own = span.get_span_context()
        super().__init__(
            f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}", own.trace_state.to_header()
        )
        self._span = span

    def __exit__(self, _kind: object, error: BaseException | None, _frames: object) -> None:
        if isinstance(error, Exception):  # a cancelled task has not failed
            self.fail(error)
        self._span.end()

    def set(self, key: str, value: Value) -> None:
        self._span.set_attribute(key, scrub(key, value))

    def fail(self, error: BaseException | str) -> None:
        from opentelemetry.trace import Status, StatusCode

        message = scrub_text(str(error))
        self._span.set_status(Status(StatusCode.ERROR, message))
        if isinstance(error, BaseException):
            stack = scrub_text("".join(traceback.format_exception(error)))
            self._span.record_exception(error, {"exception.message": message, "exception.stacktrace": stack})
