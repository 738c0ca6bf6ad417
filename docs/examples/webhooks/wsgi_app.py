"""A receiver of webhooks with no framework at all: a WSGI application, for any server that runs those.

pip install chargehand
CHARGEHAND_WEBHOOKS_SECRET=… python wsgi_app.py
"""

import json
import os
import threading
from wsgiref.simple_server import make_server

from chargehand.client import SignatureError, verify_webhook

SECRET = os.environ["CHARGEHAND_WEBHOOKS_SECRET"]
MAX_BODY = 4 << 20
REMEMBERED = 10_000

# Deliveries come at least once. Several processes share these ids in a database, written together with what they caused.
handled: dict[str, None] = {}
lock = threading.Lock()


def application(environ, start_response):
    status, text = receive(environ)
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text]


def receive(environ):
    if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/hooks"):
        return "404 Not Found", b""
    length = environ.get("CONTENT_LENGTH") or ""
    if not length.isdecimal():
        return "411 Length Required", b""
    if int(length) > MAX_BODY:
        return "413 Content Too Large", b""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    try:
        told = verify_webhook(SECRET, headers, environ["wsgi.input"].read(int(length)))
    except SignatureError as error:
        return "401 Unauthorized", str(error).encode()
    webhook_id = headers["WEBHOOK-ID"]
    with lock:
        if webhook_id not in handled:
            handle(told)  # if it raises, the answer is a 500 and the delivery is tried again
            handled[webhook_id] = None
            if len(handled) > REMEMBERED:
                del handled[next(iter(handled))]
    return "200 OK", b""


def handle(told):
    """Yours. Be quick, or put it into a queue: the server waits for the answer."""
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    make_server("127.0.0.1", int(os.environ.get("PORT", "9000")), application).serve_forever()
