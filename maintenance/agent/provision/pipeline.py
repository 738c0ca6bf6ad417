"""Pipe a stream through a decompressor into a writer, without storing it in memory or on a disk."""

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
FLUSH_SECONDS = 3600.0  # the writer may have much in its buffers


def packing(media_type: str, beginning: bytes) -> str:
    """Return the compression by the media type, else by the first bytes; "" for none."""
    for name in UNPACK:
        if media_type.endswith((f"+{name}", f".{name}", f"/{name}", f"/x-{name}")):
            return name
    return next((name for magic, name in MAGIC.items() if beginning.startswith(magic)), "")


def pour(
    pieces: Iterator[bytes], media_type: str, writer: Sequence[str], moved: Callable[[int], None] = lambda _count: None
) -> None:
    """Pipe all of it, or raise the first error. An error of the stream takes precedence over the error it caused in a program."""
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
                processes[-1].stdout.close()  # so that the process before gets SIGPIPE when this one ends
            processes.append(process)
            drains.append(Drain(process.stderr, TAIL, aloud=True))
            source = process.stdout
        _feed(processes[0], first, pieces, moved)
        for argv, process, drain in zip(argvs, processes, drains, strict=True):
            if code := process.wait(FLUSH_SECONDS):
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
    with suppress(BrokenPipeError):  # a program ended before its input: its exit code says why
        for piece in chain((first,), pieces):
            process.stdin.write(piece)
            count += len(piece)
            moved(count)
    with suppress(BrokenPipeError):
        process.stdin.close()
