"""A receiver of webhooks with FastAPI.

pip install chargehand fastapi
CHARGEHAND_WEBHOOKS_SECRET=… python fastapi_app.py
"""

import json
import os

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response

from chargehand.client import SignatureError, verify_webhook

SECRET = os.environ["CHARGEHAND_WEBHOOKS_SECRET"]
MAX_BODY = 4 << 20
REMEMBERED = 10_000

app = FastAPI()

# Deliveries come at least once. Several processes share these ids in a database, written together with what they caused.
handled: dict[str, None] = {}


@app.post("/hooks", status_code=204, response_class=Response)
async def hook(request: Request) -> None:
    body = await bounded_body(request)
    try:
        told = verify_webhook(SECRET, request.headers, body)
    except SignatureError as error:
        raise HTTPException(401, str(error)) from None
    webhook_id = request.headers["webhook-id"]
    if webhook_id not in handled:
        handle(told)  # if it raises, the answer is a 500 and the delivery is tried again
        handled[webhook_id] = None
        if len(handled) > REMEMBERED:
            del handled[next(iter(handled))]


async def bounded_body(request: Request) -> bytes:
    """The signature is that of the bytes as they came: a parameter with a model would have parsed them already."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise HTTPException(413, "too large")
    return bytes(body)


def handle(told):
    """Yours. Be quick, or put it into a queue: the server waits for the answer."""
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "9000")), log_level="warning")
