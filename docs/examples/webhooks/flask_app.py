"""A receiver of webhooks with Flask.

pip install chargehand flask
CHARGEHAND_WEBHOOKS_SECRET=… python flask_app.py
"""

import json
import os
import threading

from flask import Flask, request

from chargehand.client import SignatureError, verify_webhook

SECRET = os.environ["CHARGEHAND_WEBHOOKS_SECRET"]
REMEMBERED = 10_000

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 4 << 20  # whoever sends more gets a 413, before anything is read

# Deliveries come at least once. Several processes share these ids in a database, written together with what they caused.
handled: dict[str, None] = {}
lock = threading.Lock()


@app.post("/hooks")
def hook():
    try:
        told = verify_webhook(SECRET, request.headers, request.get_data())
    except SignatureError as error:
        return {"error": str(error)}, 401
    webhook_id = request.headers["webhook-id"]
    with lock:
        if webhook_id not in handled:
            handle(told)  # if it raises, the answer is a 500 and the delivery is tried again
            handled[webhook_id] = None
            if len(handled) > REMEMBERED:
                del handled[next(iter(handled))]
    return "", 204


def handle(told):
    """Yours. Be quick, or put it into a queue: the server waits for the answer."""
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    app.run("127.0.0.1", int(os.environ.get("PORT", "9000")))
