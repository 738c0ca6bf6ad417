"""The process of a test's server. It reads its settings as a line of JSON from stdin, and prints its URL.

It ends when stdin closes, and so with the test run, however that ends.
"""

import sys

import msgspec
import uvloop

from chargehand.app import Server, serve
from chargehand.config import load_config
from chargehand.errors import ConfigError
from chargehand.lifeline import end_with_stdin
from chargehand.observability.logs import configure_logs


def main() -> None:
    try:
        config = load_config(environ={}, overrides=msgspec.json.decode(sys.stdin.buffer.readline()))
    except ConfigError as error:
        sys.exit(f"chargehand: {error}")
    configure_logs(config.log.level, "human" if config.log.format == "text" else config.log.format)
    end_with_stdin()
    sys.exit(uvloop.run(serve(config, _print_url)))


def _print_url(server: Server) -> None:
    print(server.url, flush=True)


if __name__ == "__main__":
    main()
