"""The process that writes to SQLite: reads groups of operations from a socket, commits each in one transaction, answers.

It is a process of its own because a thread would fight the server's event loop for the interpreter lock. It lives as long as
its socket: when the server is gone it finishes the commit it is in and ends.
"""

import fcntl
import gc
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import apsw
import msgspec

from chargehand.private import close_to_others, keep_files_private, sqlite_files
from chargehand.store.sqlite.writer import Batch, Hello, Reply, TooNew, Writer, error_code

LENGTH = struct.Struct("!I")
UNREADABLE = "unreadable"  # a group with an operation that does not fit its type
PATIENCE_SECONDS = 5.0  # for the process before to finish its last commit


def receive(connection: socket.socket, count: int) -> bytearray | None:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        try:
            got = connection.recv_into(rest)
        except ConnectionError:  # the server was killed with an answer unread
            return None
        if not got:
            return None
        rest = rest[got:]
    return data


def receive_batch(connection: socket.socket, decoder: "msgspec.msgpack.Decoder[Batch]") -> Batch | None:
    """Return the next batch, or None when the server is gone. The received bytes are not kept: a batch may be large."""
    head = receive(connection, LENGTH.size)
    body = None if head is None else receive(connection, LENGTH.unpack(head)[0])
    return None if body is None else decoder.decode(body)


def frame(value: msgspec.Struct, encoder: msgspec.msgpack.Encoder) -> bytearray:
    """Return the encoded value with its length before it, in one buffer."""
    data = bytearray(LENGTH.size)
    encoder.encode_into(value, data, LENGTH.size)
    LENGTH.pack_into(data, 0, len(data) - LENGTH.size)
    return data


def hold(path: str, patience_seconds: float) -> int:
    """Lock the file against a second server; the one before may need a moment to finish its last commit."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
                raise apsw.BusyError(f"another server (process {holder or 'unknown'}) is using {path}") from None
            time.sleep(0.02)
        else:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getppid()).encode(), 0)
            return lock


def start(path: str, max_bytes: int) -> tuple[Writer | None, Hello]:
    try:
        hold(path, PATIENCE_SECONDS)
        writer = Writer(path, max_bytes)
        version = writer.migrate()
        writer.recover()
    except TooNew as error:
        return None, Hello(0, "store.too_new", str(error))
    except Exception as error:
        return None, Hello(0, error_code(error) or "store.unavailable", f"{type(error).__name__}: {error}")
    return writer, Hello(version)


def answer(writer: Writer, connection: socket.socket, decoder: "msgspec.msgpack.Decoder[Batch]") -> Reply | None:
    try:
        batch = receive_batch(connection, decoder)
    except msgspec.DecodeError as error:
        return Reply([], UNREADABLE, str(error))
    return None if batch is None else writer.commit(batch)


def main() -> None:
    path, descriptor, max_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    keep_files_private()
    close_to_others(sqlite_files(Path(path)))  # of a version before 0.2, or restored from a backup
    # A Ctrl-C goes to the whole group; the writer ends when the server closes the socket, not before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Batch)
    with socket.socket(fileno=descriptor) as connection:
        writer, hello = start(path, max_bytes)
        connection.sendall(frame(hello, encoder))
        gc.freeze()  # spare the interpreter, at its exit, collecting the objects that exist now
        while writer is not None and (reply := answer(writer, connection, decoder)) is not None:
            try:
                connection.sendall(frame(reply, encoder))
            except ConnectionError:
                break
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    main()
