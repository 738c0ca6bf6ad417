"""The receivers in docs/examples/webhooks: each in a process of its own, with deliveries of all dialects from a real server."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

from chargehand.client import SignatureError, verify_webhook
from chargehand.testing import ChargehandServer
from chargehand.webhooks.signature import Dialect, Keys, sign
from tests.e2e.server import free_port

EXAMPLES = sorted((Path(__file__).parents[2] / "docs/examples/webhooks").glob("*.py"))
SECONDS = 20.0
TOO_LARGE = 5 << 20

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(300)]


@dataclass
class Example:
    port: int
    secret: str
    lines: "Queue[str]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("POST", "/hooks", body, {"Content-Type": "application/json", **headers})
            return connection.getresponse().status
        finally:
            connection.close()

    def told(self) -> Any:
        return json.loads(self.lines.get(timeout=SECONDS))

    def signed(self, body: bytes, at: float, secret: str = "") -> dict[str, str]:
        return sign("standard", Keys(secret or self.secret), "an-id", int(at), body)


@contextmanager
def running(script: Path, secret: str) -> Iterator[Example]:
    port = free_port()
    environ = {**os.environ, "CHARGEHAND_WEBHOOKS_SECRET": secret, "PORT": str(port)}
    with subprocess.Popen(
        [sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines: Queue[str] = Queue()
        assert process.stdout is not None
        assert process.stderr is not None
        errors = process.stderr

        def read(out: Any) -> None:
            for line in out:
                if line.startswith("{"):
                    lines.put(line)

        readers = [Thread(target=read, args=(process.stdout,)), Thread(target=errors.read)]
        for reader in readers:
            reader.start()
        example = Example(port, secret, lines)
        try:
            until = time.monotonic() + SECONDS
            while True:
                assert process.poll() is None, f"{script.name} did not start"
                try:
                    assert example.post(b"{}", {}) == 401
                    break
                except ConnectionError:
                    assert time.monotonic() < until
                    time.sleep(0.02)
            yield example
        finally:
            process.kill()
            for reader in readers:
                reader.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChargehandServer]:
    with ChargehandServer(tmp_path_factory.mktemp("chargehand")) as started:
        yield started


def test_every_framework_on_the_page_has_an_example() -> None:
    assert [script.stem for script in EXAMPLES] == ["django_app", "fastapi_app", "flask_app", "wsgi_app"]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_handles_each_webhook_of_the_server_once_and_no_others(
    script: Path, server: ChargehandServer
) -> None:
    client = server.client
    with running(script, server.secret) as example:
        # One of each dialect, all from the server itself.
        client.engine.submit("examples", None, webhook=example.url)
        assert example.told()["type"] == "job.queued"
        model_job = client.submit("nobody-has-this", "hello", webhook=example.url).job_id
        assert example.told()["state"] == "queued"
        task = client.tasks.create("examples", {}, webhook=example.url)
        client.tasks.cancel(task.id)
        assert (example.told()["taskId"], client.cancel(model_job).state) == (task.id, "failed")
        assert example.told()["error"] == "cancelled"

        # A repeated delivery is recognised by its id, answered with success, and not handled again.
        [delivery] = [each for each in client.deliveries.find(job=task.id) if each.url == example.url]
        client.deliveries.replay(delivery.id)
        until = time.monotonic() + SECONDS
        while client.deliveries.get(delivery.id).state != "delivered":
            assert time.monotonic() < until
        assert client.deliveries.get(delivery.id).tries == 2
        with pytest.raises(Empty):
            example.lines.get_nowait()

        # Forged, stale and oversized webhooks are refused.
        body, now = b'{"forged": true}', time.time()
        assert example.post(body, {}) == 401
        assert example.post(body, example.signed(body, now, "another")) == 401
        assert example.post(body + b" ", example.signed(body, now)) == 401
        assert example.post(body, example.signed(body, now - 301)) == 401
        assert example.post(body, example.signed(body, now + 301)) == 401
        seen = sign("codeq", Keys(example.secret), "an-id", int(now), body)
        del seen["webhook-signature"]
        assert example.post(body, {**seen, "webhook-id": "another"}) == 401
        del seen["webhook-id"]
        assert example.post(body, seen) == 401
        large = b'"' + b"x" * TOO_LARGE + b'"'
        with suppress(ConnectionResetError, BrokenPipeError):  # the receiver may close without reading on
            assert example.post(large, example.signed(large, now)) in (400, 413)
        with pytest.raises(Empty):
            example.lines.get_nowait()
        assert example.post(body, example.signed(body, now)) in (200, 204)
        assert example.told() == {"forged": True}


BUSY = """
import io, sys, time
sys.path.insert(0, sys.argv[1])
import django_app
from chargehand.webhooks.signature import Keys, sign

def deliver(number):
    body = b"{}"
    signed = sign("standard", Keys("secret"), f"id-{number}", int(time.time()), body)
    headers = {"HTTP_" + name.upper().replace("-", "_"): value for name, value in signed.items()}
    server = {"SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(body)}
    about = {"REQUEST_METHOD": "POST", "PATH_INFO": "/hooks", "CONTENT_LENGTH": str(len(body)), "wsgi.errors": sys.stderr}
    answered = []
    django_app.application({**server, **about, **headers}, lambda status, _: answered.append(int(status[:3])))
    return answered[0]

def once_more(told):
    print("while it is handled:", deliver(0))
    raise ValueError("it broke")

django_app.handle = once_more
print("broken:", deliver(0))
handled = []
django_app.handle = handled.append
print("all:", {deliver(number) for number in range(1000)}, len(handled))
print("again:", {deliver(number) for number in range(1000)}, len(handled))
"""


def test_django_answers_200_only_after_it_has_handled_and_recorded_a_webhook() -> None:
    environ = {**os.environ, "CHARGEHAND_WEBHOOKS_SECRET": "secret"}
    said = subprocess.run(
        [sys.executable, "-c", BUSY, str(EXAMPLES[0].parent)], env=environ, capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [
        "while it is handled: 503",
        "broken: 500",
        "all: {204} 1000",
        "again: {204} 1000",
    ]


@pytest.mark.parametrize("dialect", ["standard", "codeq", "foreman"])
def test_each_dialect_is_verified_by_its_own_rules_only(dialect: Dialect) -> None:
    body = b'{"n": 1}'
    own = {"standard": "webhook-", "codeq": "x-codeq-", "foreman": "x-foreman-"}[dialect]
    signed = sign(dialect, Keys("whsec_c2VjcmV0"), "id", 1000, body)
    headers = {name.title(): value for name, value in signed.items() if name.lower().startswith(own)}
    assert verify_webhook(["old", "whsec_c2VjcmV0"], headers, body, dialect=dialect, now=1010) == {"n": 1}
    for secret, sent in [("whsec_b3RoZXI=", body), ("whsec_c2VjcmV0", b'{"n": 2}')]:
        with pytest.raises(SignatureError, match="no signature matches"):
            verify_webhook(secret, headers, sent, dialect=dialect, now=1010)
    for other in {"standard", "codeq", "foreman"} - {dialect}:
        with pytest.raises(SignatureError, match="missing"):
            verify_webhook("whsec_c2VjcmV0", headers, body, dialect=other, now=1010)  # type: ignore[arg-type]


def test_a_webhook_without_a_timestamp_is_accepted_only_in_the_foreman_dialect() -> None:
    body = b"{}"
    signed = sign("foreman", Keys("secret"), "id", 1000, body)
    assert verify_webhook("secret", signed, body, now=1010) == {}
    replayed = {name: value for name, value in signed.items() if name.startswith("X-Foreman")}
    with pytest.raises(SignatureError, match="missing"):
        verify_webhook("secret", replayed, body, now=9_999_999)
    assert verify_webhook("secret", replayed, body, dialect="foreman", now=9_999_999) == {}


def test_verify_without_a_secret_raises() -> None:
    signed = sign("standard", Keys("secret"), "id", 1000, b"{}")
    for secrets in ("", [], ["", ""]):
        with pytest.raises(SignatureError, match="no secret"):
            verify_webhook(secrets, signed, b"{}", now=1000)
