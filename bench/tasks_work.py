"""The requests of a producer and of a worker, as in codeQ's own HTTP benchmark."""

from collections.abc import Callable

import msgspec

from bench.tasks_client import Operation, Wire, expected, request

Begin = Callable[[], Operation]
RESULT = b'{"status":"COMPLETED","result":{"ok":true}}'


class _Task(msgspec.Struct):
    id: str


_task = msgspec.json.Decoder(_Task)


def creating(command: str, token: str) -> bytes:
    return request("tasks", token, b'{"command":"%s","payload":{"bench":true},"priority":0}' % command.encode())


def claiming(command: str, token: str, wait_seconds: int = 0) -> bytes:
    asked = {"commands": [command], "leaseSeconds": 60} | ({"waitSeconds": wait_seconds} if wait_seconds else {})
    return request("tasks/claim", token, msgspec.json.encode(asked))


def create(wire: Wire, command: str) -> Begin:
    asked = creating(command, wire.producer)

    def operation() -> Operation:
        expected((yield asked), 202)
        return True

    return operation


def claim_and_complete(wire: Wire, command: str) -> Begin:
    asked = claiming(command, wire.worker)

    def operation() -> Operation:
        answer = expected((yield asked), 200, 204)
        if answer.status == 204:
            return False
        task = _task.decode(answer.body).id
        expected((yield request(f"tasks/{task}/result", wire.worker, RESULT)), 200)
        return True

    return operation


def cycle(wire: Wire, command: str) -> Begin:
    begin, end = create(wire, command), claim_and_complete(wire, command)

    def operation() -> Operation:
        yield from begin()
        while not (yield from end()):  # PostgreSQL: another transaction is just claiming the only tasks
            pass
        return True

    return operation
