"""A server for a test: a process of its own, on a free port, with its database in a folder of the test."""

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from chargehand.client import Client
from chargehand.testing.receiver import Receiver

START_SECONDS = 30.0
STOP_SECONDS = 10.0
# Short pauses, so that tests need not wait for what a server does after seconds or minutes.
QUICK: Mapping[str, Any] = {
    "server.listen": "127.0.0.1:0",
    "server.drain_seconds": 1,
    "engine.poll_seconds": 0.1,
    "engine.backoff_base_seconds": 0.05,
    "engine.backoff_max_seconds": 0.5,
    "tasks.backoff_base_seconds": 0,
    "webhooks.backoff_base_seconds": 0.05,
    "webhooks.backoff_max_seconds": 0.5,
    "webhooks.timeout_seconds": 5,
    "webhooks.breaker_seconds": 0.2,
    "inference.embedded": "off",
}


class ChargehandServer:
    """Use it with `with`. `settings` are those of docs/reference/settings.md, and override those for tests.

    The server signs webhooks with `secret`, and `receiver` accepts no others.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any] = {}) -> None:
        self.folder = folder
        self.secret = str(settings.get("webhooks.secret") or secrets.token_hex(16))
        self.log_file = folder / "server.log"
        self.receiver = Receiver(self.secret)
        self._settings: dict[str, Any] = {
            **QUICK,
            "server.data_dir": str(folder / "data"),
            "store.url": f"sqlite:///{folder / 'chargehand.db'}",
            "webhooks.secret": self.secret,
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""
        self._client: Client | None = None

    @property
    def url(self) -> str:
        if not self._url:
            raise RuntimeError("the server was not started")
        return self._url

    @property
    def client(self) -> Client:
        """A blocking client. In a coroutine, make an `AsyncClient(server.url)`."""
        if self._client is None:
            self._client = Client(self.url, "")
        return self._client

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def start(self) -> None:
        """Return when the server is ready. After `stop` or `kill` it starts with the same URL and data."""
        if self._process is not None:
            raise RuntimeError("the server runs already")
        with open(self.log_file, "ab", opener=_for_us_alone) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "chargehand.testing.process"],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._process = process
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        since = time.monotonic()
        deadline = threading.Timer(START_SECONDS, process.kill)  # which ends the wait for its first line
        deadline.start()
        try:
            with suppress(BrokenPipeError):  # its log says why it is gone
                process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
                process.stdin.flush()
            where = process.stdout.readline().decode().strip()
        finally:
            deadline.cancel()
        if not where:
            self.kill()
            within = f" within {START_SECONDS:g} s" if time.monotonic() - since >= START_SECONDS else ""
            raise RuntimeError(f"the server did not start{within}:\n{self.log[-2000:]}")
        self._url = where
        self._settings["server.listen"] = urlsplit(where).netloc

    def stop(self) -> None:
        """Stop with SIGTERM: running jobs go back to their queues."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._gone()

    def kill(self) -> None:
        """Stop with SIGKILL, as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._gone()

    def _gone(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        self.receiver.start()
        try:
            self.start()
        except BaseException:
            self.receiver.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._client is not None:
                self._client.close()
            self.kill()  # its data is not needed any more
        finally:
            self.receiver.stop()

    def __repr__(self) -> str:
        return f"<ChargehandServer {self._url or 'not started'}, log in {self.log_file}>"


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
