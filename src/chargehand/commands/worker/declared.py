"""Work for the tasks that an app declares."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from chargehand.client import App, ClientError, Worker
from chargehand.client.declared.discovery import NotFoundHere, find
from chargehand.commands.worker.program import print_ended
from chargehand.errors import ConfigError


def find_app(target: str) -> App:
    """Find the app, also in the current directory, where an installed program does not look."""
    sys.path.insert(0, os.getcwd())
    try:
        return find(target)
    except NotFoundHere as error:
        raise ConfigError(str(error)) from None


def worker_of(app: App, queues: Sequence[str], options: Mapping[str, Any], *, overwrite: bool, as_json: bool) -> Worker:
    out = sys.stdout if as_json else sys.stderr
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return app.worker(queues, overwrite=overwrite, watch=lambda ended: print_ended(ended, as_json, out), **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


async def serve(worker: Worker, *, as_json: bool) -> None:
    if not as_json:
        print(worker.introduction, file=sys.stderr, flush=True)
    try:
        await worker.serve()
    except ClientError as error:
        raise ConfigError(f"the server refuses this worker: {error}") from None
