"""Tasks out of a stream of bytes."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.client.errors import ClientError
from chargehand.client.task_stream import TaskLines
from chargehand.client.transport.backoff import LONGEST_SECONDS, pause

TEXT = b'\n{"id":"1","command":"a","payload":"{\\"n\\":1}"}\n\n\r\n{"id":"2","lease":7}\n{"id":"\xc3\xbc"}\n{"id'


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_the_tasks_are_the_same_however_their_bytes_arrive(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    lines = TaskLines()
    found = [task for begin, end in itertools.pairwise(places) for task in lines.tasks(TEXT[begin:end])]
    assert [(task.id, task.lease, task.payload) for task in found] == [
        ("1", 0, {"n": 1}),
        ("2", 7, None),
        ("ü", 0, None),
    ]


def test_a_line_may_have_a_mebibyte() -> None:
    line = msgspec.json.encode({"id": "1", "payload": msgspec.json.encode("x" * (1 << 20)).decode()})
    lines = TaskLines()
    assert lines.tasks(line) == []
    [task] = lines.tasks(b"\n")
    assert task.payload == "x" * (1 << 20)


def test_a_line_that_is_no_task_raises_a_server_fault() -> None:
    with pytest.raises(ClientError, match="502 a line of the stream is not a task"):
        TaskLines().tasks(b"<html>\n")


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_to_five_seconds_and_are_never_zero(failures: int, chance: float) -> None:
    assert 0.1 <= pause(failures, lambda: chance) <= LONGEST_SECONDS
    assert pause(failures, lambda: 0.0) <= pause(failures + 1, lambda: 0.0)
