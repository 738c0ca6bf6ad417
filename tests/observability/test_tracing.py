import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chargehand.errors import ConfigError
from chargehand.observability import tracing as module
from chargehand.observability.tracing import Tracing, configure_tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
INCOMING = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """An OTLP/HTTP receiver on loopback."""

    def __init__(self) -> None:
        self.received: Queue[tuple[str, ExportTraceServiceRequest]] = Queue()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.received.put((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def spans(self) -> dict[str, Any]:
        _, request = self.received.get(timeout=10)
        return {span.name: span for span in request.resource_spans[0].scope_spans[0].spans}

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def values(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


# Off


def test_without_tracing_a_valid_context_is_passed_on_unchanged() -> None:
    with configure_tracing("", "chargehand").span("job", traceparent=INCOMING, tracestate="a=1") as span:
        span.set("job_id", "job_1")
        span.fail(ValueError("no"))
    assert (span.traceparent, span.tracestate) == (INCOMING, "a=1")


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        INCOMING.upper(),
        INCOMING + "\n",
        INCOMING + "-more",
        f"01-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-0\u0661",
    ],
)
def test_an_invalid_traceparent_is_dropped_with_its_state(traceparent: str) -> None:
    span = Tracing().span("job", traceparent=traceparent, tracestate="a=1")
    assert (span.traceparent, span.tracestate) == ("", "")


@pytest.mark.parametrize("tracestate", ["a=" + "x" * 511, "a=\x7f", "a=1\r\nb: 2", "ä=1"])
def test_an_invalid_tracestate_is_dropped_alone(tracestate: str) -> None:
    span = Tracing().span("job", traceparent=INCOMING, tracestate=tracestate)
    assert (span.traceparent, span.tracestate) == (INCOMING, "")


def test_without_tracing_opentelemetry_is_not_imported() -> None:
    program = f"""
import sys
from chargehand.observability.tracing import configure_tracing
tracing = configure_tracing("", "chargehand")
with tracing.span("job", traceparent={INCOMING!r}) as span:
    span.fail(ValueError("no"))
tracing.shutdown()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_package_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install chargehand\[otel\]"):
        configure_tracing("http://127.0.0.1:4318", "chargehand")


# On


def test_spans_are_linked_from_the_caller_to_the_receiver(collector: Collector) -> None:
    tracing = configure_tracing(collector.url, "chargehand-test")
    with (
        tracing.span("job", traceparent=INCOMING, tracestate="vendor=1", attributes={"job_id": "job_1"}) as job,
        tracing.span("delivery", traceparent=job.traceparent, tracestate=job.tracestate) as delivery,
    ):
        delivery.set("attempt", 2)
    tracing.shutdown()

    path, request = collector.received.get(timeout=10)
    assert path == "/v1/traces"
    assert values(request.resource_spans[0].resource.attributes)["service.name"] == "chargehand-test"
    spans = {span.name: span for span in request.resource_spans[0].scope_spans[0].spans}
    assert spans["job"].trace_id.hex() == spans["delivery"].trace_id.hex() == TRACE
    assert spans["job"].parent_span_id.hex() == PARENT
    assert spans["delivery"].parent_span_id == spans["job"].span_id
    assert job.traceparent == f"00-{TRACE}-{spans['job'].span_id.hex()}-01"
    assert delivery.traceparent == f"00-{TRACE}-{spans['delivery'].span_id.hex()}-01"
    assert delivery.tracestate == "vendor=1"
    assert values(spans["job"].attributes) == {"job_id": "job_1"}
    assert values(spans["delivery"].attributes) == {"attempt": 2}


def test_a_span_without_a_valid_parent_is_a_root(collector: Collector) -> None:
    tracing = configure_tracing(collector.url + "/custom/path", "chargehand")
    with tracing.span("outer"), tracing.span("inner", traceparent="nonsense", tracestate="a=1") as inner:
        pass
    tracing.shutdown()
    path, request = collector.received.get(timeout=10)
    assert path == "/custom/path"
    spans = request.resource_spans[0].scope_spans[0].spans
    assert [span.parent_span_id for span in spans] == [b"", b""]
    assert spans[0].trace_id != spans[1].trace_id
    assert inner.tracestate == ""


def test_an_error_fails_the_span_and_shows_no_secret(collector: Collector) -> None:
    tracing = configure_tracing(collector.url, "chargehand")
    url = "https://user:hunter2@there/?q=hunter2"
    with pytest.raises(ValueError), tracing.span("raised", attributes={"token": "hunter2", "url": url}):
        raise ValueError("no answer from https://user:hunter2@there/")
    with tracing.span("told") as span:
        span.set("url", url)
        span.fail("gave up on https://user:hunter2@there/")
    with pytest.raises(asyncio.CancelledError), tracing.span("cancelled"):
        raise asyncio.CancelledError
    tracing.shutdown()

    spans = collector.spans()
    assert spans["raised"].status.message == "no answer from https://there/"
    assert values(spans["raised"].attributes) == {"token": "***", "url": "https://there/"}
    (event,) = spans["raised"].events
    assert values(event.attributes)["exception.type"] == "ValueError"
    assert "Traceback" in values(event.attributes)["exception.stacktrace"]
    assert spans["told"].status.message == "gave up on https://there/"
    assert [spans[name].status.code for name in ("raised", "told", "cancelled")] == [2, 2, 0]
    assert "hunter2" not in str(spans)


def test_a_span_that_is_not_sampled_is_passed_on_but_not_exported(collector: Collector) -> None:
    tracing = configure_tracing(collector.url, "chargehand", sample_ratio=0.0)
    with tracing.span("new") as new:
        pass
    with tracing.span("refused by the caller", traceparent=f"00-{TRACE}-{PARENT}-00") as refused:
        pass
    with tracing.span("wanted by the caller", traceparent=INCOMING):
        pass
    tracing.shutdown()
    assert int(new.traceparent[-2:], 16) & 1 == 0
    assert int(refused.traceparent[-2:], 16) & 1 == 0
    assert refused.traceparent.startswith(f"00-{TRACE}-")
    assert list(collector.spans()) == ["wanted by the caller"]
    assert collector.received.empty()


def test_an_unreachable_collector_does_not_block_the_server(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    monkeypatch.setattr(module, "SHUTDOWN_SECONDS", 0.2)
    collector.close()
    tracing = configure_tracing(collector.url, "chargehand")
    began = time.monotonic()
    for _ in range(5000):  # more than the queue holds
        with tracing.span("job"):
            pass
    tracing.shutdown()
    assert time.monotonic() - began < 10
