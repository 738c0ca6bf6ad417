"""An HTTP server that prints each webhook and whether its signature is good."""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any

import msgspec

from chargehand.webhooks.signature import SignatureError, verify

MAX_BODY = 8 << 20


def verdict(headers: dict[str, str], body: bytes, secret: str, now: float) -> str:
    if not secret:
        return "not checked (no --secret)"
    try:
        verify("standard", [secret], headers, body, now)
    except SignatureError as error:
        return f"BAD: {error}"
    return "good"


def listen(
    host: str, port: int, secret: str, *, as_json: bool, count: int, answer: int, out: IO[str] = sys.stdout
) -> None:
    """Listen until `count` webhooks have come (0: no limit), stdout is closed (BrokenPipeError), or Ctrl-C."""
    received = 0
    turn = threading.Lock()  # requests run in threads: each prints and counts alone
    reader_gone: BrokenPipeError | None = None

    class PrintingHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self) -> None:
            nonlocal received, reader_gone
            body = self.rfile.read(min(int(self.headers.get("content-length") or 0), MAX_BODY))
            with turn:
                if reader_gone or (count and received >= count):
                    self.close_connection = True
                    return  # without an answer: its sender tries again later
                self.send_response(answer)
                self.send_header("content-length", "0")
                self.end_headers()
                try:
                    show(dict(self.headers.items()), self.path, body)
                except BrokenPipeError as error:
                    reader_gone = error
                received += 1
                is_last = bool(reader_gone) or received == count
            if is_last:
                server.shutdown()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    def show(headers: dict[str, str], path: str, body: bytes) -> None:
        lower = {name.lower(): value for name, value in headers.items()}
        signature = verdict(lower, body, secret, time.time())
        sequence = lower.get("x-chargehand-sequence", "-")
        try:
            content = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            content = body.decode("utf-8", "replace")
        if as_json:
            line = {
                "id": lower.get("webhook-id"),
                "sequence": sequence,
                "path": path,
                "signature": signature,
                "body": content,
            }
            print(msgspec.json.encode(line).decode(), file=out, flush=True)
            return
        print(f"{time.strftime('%H:%M:%S')}  {path}  sequence {sequence}  signature {signature}", file=out)
        print(f"  {msgspec.json.encode(content).decode()}", file=out, flush=True)

    server = ThreadingHTTPServer((host, port), PrintingHandler)
    server.daemon_threads = True
    print(f"Listening on http://{host}:{server.server_address[1]}/ ; Ctrl-C stops.", file=sys.stderr, flush=True)
    with server:
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return
    if reader_gone:
        raise reader_gone
