"""The embedded target as a process: `python -m chargehand.doors.inference.embedded --port 0`.

Prints its URL in one line of JSON on standard output and serves until SIGTERM, or until its standard input ends: its parent holds the
other end, so it never outlives its parent. With CHARGEHAND_EMBEDDED_KEY in its environment, where other users cannot read it, it
serves only callers that send the key as a Bearer token.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import threading

import uvloop
from aiohttp import web

from chargehand.doors.inference.embedded.app import make_app
from chargehand.doors.inference.embedded.catalogue import Catalogue, Model, Unknown, find_models
from chargehand.doors.inference.embedded.llama import LlamaCpp

KEY = "CHARGEHAND_EMBEDDED_KEY"
CLOSING_SECONDS = 0.5  # for running requests at the end


def main() -> None:
    options = arguments()
    try:
        models = find_models(options.model)
    except Unknown as error:
        sys.exit(str(error))
    try:
        uvloop.run(serve(models, options))
    except OSError as error:
        sys.exit(f"cannot listen on 127.0.0.1:{options.port}: {error.strerror or error}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chargehand.doors.inference.embedded", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument(
        "--model", action="append", default=[], help="a name or a GGUF file; may be repeated; default: all"
    )
    parser.add_argument("--threads", type=int, default=0, help="threads for each model; 0: half of the cores")
    parser.add_argument("--parallel", type=int, default=1, help="parallel requests to one model")
    return parser.parse_args()


async def serve(models: list[Model], options: argparse.Namespace) -> None:
    parallel = max(1, options.parallel)
    key = os.environ.pop(KEY, "")  # the processes with the models do not need it
    app = make_app(Catalogue(models), LlamaCpp(parallel), threads=options.threads, parallel=parallel, key=key)
    # A caller that disconnects cancels the handler, and with it the generation.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSING_SECONDS)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", options.port)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        end = hear_the_end()  # before anybody knows that we are there
        print(json.dumps({"url": f"http://{host}:{port}", "models": [model.name for model in models]}), flush=True)
        gc.freeze()  # spare the interpreter, at its exit, collecting the objects that exist now
        await end.wait()
    finally:
        await runner.cleanup()


def hear_the_end() -> asyncio.Event:
    """Return what is set when the process is told to end, or its parent is gone."""
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)

    def wait_for_parent() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(end.set)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    return end


if __name__ == "__main__":
    main()
