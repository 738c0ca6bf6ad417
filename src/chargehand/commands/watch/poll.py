"""Read something again and again while a command follows a job."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from chargehand.client import ClientError
from chargehand.client.transport.job_log import Away, ignore

T = TypeVar("T")


@contextmanager
def polling(
    seconds: float, read: Callable[[], T], show: Callable[[T], None], away: Away = ignore
) -> Iterator[Callable[[], None]]:
    """Read and show every so many seconds in a thread, until the block ends. Yields a function that makes it read at once."""
    due = threading.Event()
    turn = threading.Lock()  # nothing is shown after the block
    ended = False

    def poll() -> None:
        while not ended:
            try:
                value = read()
                with turn:
                    if not ended:
                        show(value)
            except ClientError as error:
                with turn:
                    if not ended:
                        away(error)
            due.wait(seconds)
            due.clear()

    threading.Thread(target=poll, name="poll", daemon=True).start()
    try:
        yield due.set
    finally:
        with turn:
            ended = True
        due.set()
