"""A receiver of webhooks that remembers what it was sent, for tests to assert on."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from chargehand.client.webhook import verify_webhook
from chargehand.webhooks.signature import SignatureError

MAX_BODY = 8 << 20


@dataclass(frozen=True)
class Received:
    """A webhook whose signature is good. `id` is the same on every try of a delivery."""

    path: str
    headers: Mapping[str, str]  # names in lower case
    body: Any
    answered: int

    @property
    def id(self) -> str:
        return self.headers.get("webhook-id", "")


class Receiver:
    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._arrived = threading.Condition()
        self._received: list[Received] = []
        self._answers: deque[int] = deque()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Any path behind it is received too."""
        if self._server is None:
            raise RuntimeError("the receiver was not started")
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @property
    def received(self) -> list[Received]:
        with self._arrived:
            return list(self._received)

    def answer(self, *statuses: int) -> None:
        """Answer the next webhooks with these statuses, in order, and all others with 200."""
        with self._arrived:
            self._answers.extend(statuses)

    def wait_for(self, match: Callable[[Received], bool] = lambda _: True, timeout: float = 10.0) -> Received:
        """The first webhook that matches, once it has come. After the timeout, an AssertionError that shows those that came."""
        until = time.monotonic() + timeout
        with self._arrived:
            while True:
                for each in self._received:
                    if match(each):
                        return each
                left = until - time.monotonic()
                if left <= 0:
                    came = "".join(f"\n  {each.path} {each.body}" for each in self._received[-20:]) or " none"
                    raise AssertionError(f"no such webhook came within {timeout:g} s; these did:{came}")
                self._arrived.wait(left)

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                if length > MAX_BODY:
                    self.close_connection = True
                    status = 413
                else:
                    status = receiver._receive(self.path, dict(self.headers.items()), self.rfile.read(length))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="webhooks", daemon=True
        ).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _receive(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        try:
            content = verify_webhook(self._secret, headers, body)
        except SignatureError:
            return 401
        named = {name.lower(): value for name, value in headers.items()}
        with self._arrived:
            status = self._answers.popleft() if self._answers else 200
            self._received.append(Received(path, named, content, status))
            self._arrived.notify_all()
        return status
