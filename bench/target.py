"""A target to measure with: the conformance target of the tests.

`python -m bench.target PORT TOKENS TOKEN_SECONDS PARALLEL` prints its URL and ends with its standard input.
"""

import asyncio
import sys

import uvloop

from tests.inference.conformance import Habits, Model, OllamaTarget


async def main(port: str, tokens: str, token_seconds: str, parallel: str) -> None:
    habits = Habits(tokens=int(tokens), token_seconds=float(token_seconds))
    target = OllamaTarget({"a": Model()}, habits, int(parallel), remember=False)
    await target.start(int(port))
    print(target.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
