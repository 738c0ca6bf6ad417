"""Flows: a thousand steps, from the submission to the end of the last, against as many jobs that do not wait for each other."""

import time
from collections.abc import AsyncIterator
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

import msgspec

from bench import work
from bench.bench import Bench
from bench.client import Connection, connected, request
from bench.processes import Server
from bench.report import Row, Target, at

STEPS = 1_000
LAYER = 100  # steps that can run side by side
PARENTS = 3
CONNECTIONS = 32
WAIT_SECONDS = 5.0
AT_MOST = Target("≤", 1.3)


class _Took(NamedTuple):
    """Seconds: of all, and from when all was submitted."""

    whole: float
    work: float


async def flows(bench: Bench) -> AsyncIterator[Row]:
    """A thousand jobs are a thousand requests and a flow is one, so each is also timed from its last 202 on."""
    took: dict[str, list[_Took]] = {"apart": [], "layers": [], "fan": []}
    async with bench.server() as server, connected(server.url, CONNECTIONS) as opened:
        for turn in range(bench.scale.rounds + 1):  # the first is the warm-up
            for name in took:
                seconds = await _timed(server, opened, _flow(name))
                bench.say(f"  {name:<42}{seconds.whole:.3f} s, {seconds.work:.3f} s of them after the submission")
                took[name] += [seconds] if turn else []
    for name, meant in (
        ("layers", f"in layers of {LAYER}, each after {PARENTS}"),
        ("fan", "one, then all others but one, then that"),
    ):
        for part, of in (
            ("with its submission / jobs with theirs", attrgetter("whole")),
            ("once submitted / jobs once submitted", attrgetter("work")),
        ):
            measured, baseline = list(map(of, took[name])), list(map(of, took["apart"]))
            yield Row(
                measurement=f"flow of {STEPS:,} {meant}, {part}, {at(CONNECTIONS)}",
                value=median(measured),
                unit="s",
                baseline=median(baseline),
                ratio=median(one / other for one, other in zip(measured, baseline, strict=True)),
                target=AT_MOST,
            )


async def _timed(server: Server, opened: list[Connection], flow: bytes | None) -> _Took:
    begin = time.perf_counter()
    if flow is None:
        await server.run(opened, work.submit, count=STEPS)
    else:
        await opened[0].expect(flow, 202)
    submitted = time.perf_counter()
    await server.run(opened, _claim_and_succeed, count=STEPS)
    end = time.perf_counter()
    return _Took(end - begin, end - submitted)


_claiming = work.claiming(WAIT_SECONDS)


async def _claim_and_succeed(connection: Connection) -> None:
    answer = await connection.expect(_claiming, 200, 204)
    while answer.status == 204:
        answer = await connection.expect(_claiming, 200, 204)
    await work.succeed(connection, answer)


def _flow(shape: str) -> bytes | None:
    if shape == "apart":
        return None
    after = _layers() if shape == "layers" else _fan()
    body = {"queue": work.QUEUE, "payload": msgspec.Raw(work.PAYLOAD)}
    steps: list[dict[str, Any]] = [
        {"name": f"s{number}", "door": "engine", "body": body, "after": [f"s{each}" for each in parents]}
        for number, parents in enumerate(after)
    ]
    return request("POST", "/engine/flows", msgspec.json.encode({"steps": steps}))


def _layers() -> list[list[int]]:
    return [
        [] if number < LAYER else [number // LAYER * LAYER - LAYER + (number + each) % LAYER for each in range(PARENTS)]
        for number in range(STEPS)
    ]


def _fan() -> list[list[int]]:
    return [[], *[[0] for _ in range(STEPS - 2)], list(range(1, STEPS - 1))]
