"""The operations that are timed, on one connection."""

import itertools

import msgspec

from bench.client import Answer, Connection, Work, request

QUEUE = "bench"
PAYLOAD = msgspec.json.encode({"text": "x" * 289})  # 300 bytes
_SUBMIT = {"queue": QUEUE, "payload": msgspec.Raw(PAYLOAD)}


class _Job(msgspec.Struct):
    id: str
    lease: int


class _Claimed(msgspec.Struct):
    jobs: list[_Job]


_decoder = msgspec.json.Decoder(_Claimed)


def submission(webhook: str = "", key: str = "") -> bytes:
    told = {"webhook": {"url": webhook, "on": ["queued"]}} if webhook else {}
    return request("POST", "/engine/jobs", msgspec.json.encode(_SUBMIT | told), key)


def claiming(wait_seconds: float = 0.0) -> bytes:
    asked = {"queues": [QUEUE], "lease_seconds": 600, "wait_seconds": wait_seconds}
    return request("POST", "/engine/claims", msgspec.json.encode(asked))


_submission = submission()
_claiming = claiming()
_nothing = request("POST", "/bench/empty", msgspec.json.encode(_SUBMIT))


async def do_nothing(connection: Connection) -> None:
    await connection.expect(_nothing, 202)


async def submit(connection: Connection) -> None:
    await connection.expect(_submission, 202)


async def claim_and_succeed(connection: Connection) -> None:
    answer = await connection.expect(_claiming, 200, 204)
    while answer.status == 204:  # PostgreSQL: another transaction is just claiming the only jobs
        answer = await connection.expect(_claiming, 200, 204)
    await succeed(connection, answer)


async def succeed(connection: Connection, claimed: Answer) -> None:
    [job] = _decoder.decode(claimed.body).jobs
    await connection.expect(
        request("POST", f"/engine/jobs/{job.id}/succeed", b'{"lease":%d,"result":{"ok":true}}' % job.lease), 200
    )


async def cycle(connection: Connection) -> None:
    await submit(connection)
    await claim_and_succeed(connection)


def cycle_with_some_told(webhook: str) -> Work:
    """One job in ten has a webhook and an idempotency key."""
    numbers = itertools.count()

    async def cycle(connection: Connection) -> None:
        number = next(numbers)
        told = number % 10 == 0
        await connection.expect(submission(webhook, f"key {number}") if told else _submission, 202)
        await claim_and_succeed(connection)

    return cycle
