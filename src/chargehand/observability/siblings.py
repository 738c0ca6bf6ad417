"""The metrics of several processes that serve on one port, as one answer.

A scrape reaches one of the processes, whichever accepts its connection. That one asks all of them, each on a socket in a folder
that only their user may enter, and adds a label that says whose each value is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

ANSWER_SECONDS = 3.0  # a process that takes longer is left out


class Siblings:
    def __init__(self, folder: Path, number: int, count: int) -> None:
        self._sockets = {each: folder / f"{each}.metrics" for each in range(1, count + 1)}
        self._own = self._sockets[number]
        self._listener: asyncio.AbstractServer | None = None

    async def listen(self, render: Callable[[], Awaitable[bytes]]) -> None:
        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                writer.write(await render())
            finally:
                writer.close()

        self._listener = await asyncio.start_unix_server(answer, self._own)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def metrics(self) -> bytes:
        answers = await asyncio.gather(*map(_ask, self._sockets.values()))
        return joined(dict(zip(self._sockets, answers, strict=True)))


async def _ask(path: Path) -> bytes:
    """Return the metrics of the process, or nothing if it is not there."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


def joined(answers: Mapping[int, bytes]) -> bytes:
    """Make one exposition of several: each family once, and a label `process` in each sample."""
    families: dict[str, list[str]] = {}
    for process, answer in answers.items():
        lines: list[str] = []
        for line in answer.decode().split("\n"):
            if line.startswith("# HELP "):
                lines = families.setdefault(line, [])
            elif line.startswith("#"):
                if line not in lines:
                    lines.append(line)
            elif line:
                end = min(at for at in (line.find("{"), line.find(" ")) if at > 0)
                rest = f",{line[end + 1 :]}" if line[end] == "{" else f"}}{line[end:]}"
                lines.append(f'{line[:end]}{{process="{process}"{rest}')
    return "".join(f"{line}\n" for head, lines in families.items() for line in (head, *lines)).encode()
