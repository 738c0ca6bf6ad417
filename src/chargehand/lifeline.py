"""End this process when the one that started it is gone, however that ended: its end of our standard input closes."""

import os
import signal
import threading


def end_with_stdin() -> None:
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):  # not by sys.stdin, whose lock a thread must not hold when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
