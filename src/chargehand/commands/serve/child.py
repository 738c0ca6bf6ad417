"""One of the processes of `chargehand serve --processes N`: a whole node, which is told what to do by a line on its standard input.

It knows nothing of the parent's but the sockets that it inherits, and ends when the parent is gone.
"""

import socket
import sys
from pathlib import Path

import typer
import uvloop

from chargehand.app import serve
from chargehand.commands.refusals import for_programs, one_line_errors
from chargehand.commands.serve.told import Told
from chargehand.lifeline import end_with_stdin
from chargehand.observability.logs import configure_logs
from chargehand.observability.siblings import Siblings


def main() -> None:
    told = Told.decoded(sys.stdin.buffer.readline())
    end_with_stdin()
    for_programs(told.as_json)
    configure_logs(told.config.log.level, told.log_format, process=told.number)
    inherited = [socket.socket(fileno=descriptor) for descriptor in told.listening]
    siblings = Siblings(Path(told.folder), told.number, told.config.server.processes)
    try:
        with one_line_errors():
            sys.exit(uvloop.run(serve(told.config, lambda _: None, inherited, siblings)))
    except typer.Exit as refused:
        sys.exit(refused.exit_code)


if __name__ == "__main__":
    main()
