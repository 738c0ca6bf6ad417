"""`python -m bench` measures, prints a table of ratios, and writes all samples as JSON."""

import os
import platform
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop

from bench.bench import FULL, QUICK, Bench
from bench.codeq_stream import codeq_stream
from bench.deliveries import deliveries
from bench.flows import flows
from bench.flows_many import flows_many
from bench.growth import bloat, growth
from bench.inference import back, inference_jobs, passthrough, swaps
from bench.jobs import accept, claim, cycle
from bench.media import media
from bench.postgres import both_stores
from bench.provisioning import status_webhooks
from bench.report import Row, table
from bench.stores import Stores, fsync_seconds, postgres_stores, sqlite_stores
from bench.task_iso import task_iso
from bench.tasks import tasks_busy, tasks_cost, tasks_create, tasks_cycle, tasks_peers, tasks_stream, tasks_waiters
from bench.tasks_client import Wire
from bench.waiters import waiters


class Name(StrEnum):
    ACCEPT = "accept"
    CYCLE = "cycle"
    CLAIM = "claim"
    FLOWS = "flows"
    FLOWS_MANY = "flows-many"
    DELIVERIES = "deliveries"
    WAITERS = "waiters"
    PASSTHROUGH = "passthrough"
    INFERENCE_JOBS = "inference-jobs"
    BACK = "back"
    SWAPS = "swaps"
    TASKS_CYCLE = "tasks-cycle"
    TASKS_CREATE = "tasks-create"
    TASKS_COST = "tasks-cost"
    TASKS_BUSY = "tasks-busy"
    TASKS_STREAM = "tasks-stream"
    CODEQ_STREAM = "codeq-stream"
    TASKS_WAITERS = "tasks-waiters"
    TASKS_PEERS = "tasks-peers"
    MEDIA = "media"
    STATUS_WEBHOOKS = "status-webhooks"
    TASK_ISO = "task-iso"
    STORES = "stores"
    GROWTH = "growth"
    BLOAT = "bloat"


class Store(StrEnum):
    SQLITE = "sqlite"
    POSTGRES = "postgres"


MEASUREMENTS: dict[Name, Callable[[Bench], AsyncIterator[Row]]] = {
    Name.ACCEPT: accept,
    Name.CYCLE: cycle,
    Name.CLAIM: claim,
    Name.FLOWS: flows,
    Name.FLOWS_MANY: flows_many,
    Name.DELIVERIES: deliveries,
    Name.WAITERS: waiters,
    Name.PASSTHROUGH: passthrough,
    Name.INFERENCE_JOBS: inference_jobs,
    Name.BACK: back,
    Name.SWAPS: swaps,
    Name.TASKS_CYCLE: tasks_cycle,
    Name.TASKS_CREATE: tasks_create,
    Name.TASKS_COST: tasks_cost,
    Name.TASKS_BUSY: tasks_busy,
    Name.TASKS_STREAM: tasks_stream,
    Name.CODEQ_STREAM: codeq_stream,
    Name.TASKS_WAITERS: tasks_waiters,
    Name.TASKS_PEERS: tasks_peers,
    Name.MEDIA: media,
    Name.STATUS_WEBHOOKS: status_webhooks,
    Name.TASK_ISO: task_iso,
    Name.STORES: both_stores,
    Name.GROWTH: growth,
    Name.BLOAT: bloat,
}
STORES: dict[Store, Callable[[], AbstractContextManager[Stores]]] = {
    Store.SQLITE: sqlite_stores,
    Store.POSTGRES: postgres_stores,
}


class Report(msgspec.Struct):
    """The results. They are kept in the repository, so they are short and do not name the machine."""

    at: str
    machine: dict[str, str | int | float]
    rows: list[Row]

    def encoded(self) -> bytes:
        """Encode with one line for each row."""
        fields = _rounded(msgspec.to_builtins(self))
        rows = b",\n".join(map(msgspec.json.encode, fields.pop("rows")))
        return msgspec.json.encode(fields)[:-1] + b',"rows":[\n' + rows + b"\n]}\n"


def _rounded(value: Any) -> Any:
    """Round all floats to six digits, which is more than was measured."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main(
    only: Annotated[list[Name] | None, typer.Option(help="Only this measurement; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="In a minute, to see that all of it runs.")] = False,
    json: Annotated[Path | None, typer.Option(help="Where to write all samples. [bench/results/TIME.json]")] = None,
    store: Annotated[Store, typer.Option(help="The database.")] = Store.SQLITE,
    keep: Annotated[
        Path | None, typer.Option(help="A folder where the large database of growth stays, for the next run.")
    ] = None,
    codeq: Annotated[
        Path | None, typer.Option(help="A folder with codeQ's source, which Go builds, to measure its streams beside.")
    ] = None,
    peer_url: Annotated[str, typer.Option(help="Another server of codeQ's wire, to measure the tasks beside.")] = "",
    peer_producer_token: Annotated[str, typer.Option(help="Its token for producers.")] = "",
    peer_worker_token: Annotated[str, typer.Option(help="Its token for workers.")] = "",
) -> None:
    """Measure Chargehand beside the least that the same work could cost."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a thousand waiters are a thousand connections
    rows: list[Row] = []
    with STORES[store]() as stores:
        machine: dict[str, str | int | float] = {
            "store": store,
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "fsync_ms": round(fsync_seconds(stores.folder) * 1e3, 3),
            "load_average": os.getloadavg()[0],
        }
        print("  ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
        peer = Wire(peer_url, peer_producer_token, peer_worker_token) if peer_url else None
        bench = Bench(stores, QUICK if quick else FULL, lambda line: print(line, flush=True), peer, keep, codeq)
        try:
            uvloop.run(_measure(bench, list(only or MEASUREMENTS), rows))
        finally:  # show what was measured before the failure
            print(f"\n{table(rows)}")
            file = json or Path(__file__).parent / "results" / f"{'quick-' if quick else ''}{at}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(Report(at, machine, rows).encoded())
            print(f"\nAll samples are in {file}")


async def _measure(bench: Bench, names: list[Name], rows: list[Row]) -> None:
    for name in names:
        bench.say(f"\n{name}")
        async for row in MEASUREMENTS[name](bench):
            rows.append(row)  # noqa: PERF401 - what was measured before a failure is shown


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    app()
