"""From a stream to a program: through what unpacks it, into what writes it, with nothing of it in memory or on a disk between."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import IO

from provision.errors import Exit, Trouble
from provision.journal import say
from provision.run import TAIL, CommandFailed, Drain, end, ended_by, environment

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz"}
UNPACK = {"gzip": ("gzip", "-dc"), "zstd": ("zstd", "-dcq", "--long=31"), "xz": ("xz", "-dc")}
LONGEST_MAGIC = max(map(len, MAGIC))
LAST_WORDS = 3600.0  # the writer may have much in its buffers


def packing(media_type: str, beginning: bytes) -> str:
    """How it is packed, by its media type, and where that says nothing by its first bytes; "" for not at all."""
    for name in UNPACK:
        if media_type.endswith((f"+{name}", f".{name}", f"/{name}", f"/x-{name}")):
            return name
    return next((name for magic, name in MAGIC.items() if beginning.startswith(magic)), "")


def pour(
    pieces: Iterator[bytes], media_type: str, writer: Sequence[str], moved: Callable[[int], None] = lambda _count: None
) -> None:
    """All of it, or the first thing that went wrong. What is wrong with the stream counts more than what its end did to a program."""
    first = b""
    while len(first) < LONGEST_MAGIC and (piece := next(pieces, b"")):
        first += piece
    packed = packing(media_type, first)
    argvs = [UNPACK[packed], tuple(writer)] if packed else [tuple(writer)]
    processes: list[subprocess.Popen[bytes]] = []
    drains: list[Drain] = []
    try:
        source: int | IO[bytes] | None = subprocess.PIPE
        for argv in argvs:
            last = argv is argvs[-1]
            process = _start(argv, source, last)
            if processes and processes[-1].stdout is not None:
                processes[-1].stdout.close()  # so that the one before notices when this one ends
            processes.append(process)
            drains.append(Drain(process.stderr, TAIL, aloud=True))
            source = process.stdout
        _feed(processes[0], first, pieces, moved)
        for argv, process, drain in zip(argvs, processes, drains, strict=True):
            if code := process.wait(LAST_WORDS):
                raise CommandFailed(argv[0], ended_by(code), drain.text())
    finally:
        for process in processes:
            if process.stdin is not None and not process.stdin.closed:
                with suppress(BrokenPipeError):
                    process.stdin.close()
            if process.poll() is None:
                end(process)


def _start(argv: Sequence[str], source: "int | IO[bytes] | None", last: bool) -> "subprocess.Popen[bytes]":
    say("| " + " ".join(argv))
    try:
        return subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.DEVNULL if last else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise Trouble(f"{argv[0]} cannot be started: {error.strerror}", Exit.COMMAND) from None


def _feed(
    process: "subprocess.Popen[bytes]", first: bytes, pieces: Iterator[bytes], moved: Callable[[int], None]
) -> None:
    assert process.stdin is not None  # noqa: S101 - for the type checker: it was asked for
    count = 0
    with suppress(BrokenPipeError):  # a program ended before its input did: its exit code tells why
        for piece in chain((first,), pieces):
            process.stdin.write(piece)
            count += len(piece)
            moved(count)
    with suppress(BrokenPipeError):
        process.stdin.close()
