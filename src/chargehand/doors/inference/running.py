"""The attempts that run now, and who reads their answers: followers of a job, and callers who hold a connection."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chargehand.doors.inference.stream import AnswerStream


class HeldCall:
    """A caller who holds a connection open for a job and gets the target's bytes as they come."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[AnswerStream] = asyncio.get_running_loop().create_future()
        self.finished = asyncio.Event()  # the end of the job is on disk

    def give(self, stream: AnswerStream) -> None:
        if not self.answer.done():
            self.answer.set_result(stream)


class RunningAttempts:
    def __init__(self) -> None:
        self.calls: dict[str, HeldCall] = {}  # by job
        self._streams: dict[str, AnswerStream] = {}  # by job
        self._followers: dict[str, list[Callable[[AnswerStream], None]]] = {}

    def follow(self, job_id: str, begin: Callable[[AnswerStream], None]) -> Callable[[], None]:
        """Call `begin` with the answer of each attempt, the running one first. Return a function that stops it."""
        followers = self._followers.setdefault(job_id, [])
        followers.append(begin)
        if job_id in self._streams:
            begin(self._streams[job_id])

        def stop() -> None:
            followers.remove(begin)
            if not followers:
                del self._followers[job_id]

        return stop

    @contextmanager
    def reading(self, job_id: str, stream: AnswerStream) -> Iterator[None]:
        """Let followers read the answer of an attempt while it runs."""
        self._streams[job_id] = stream
        for begin in self._followers.get(job_id, ()):
            begin(stream)
        try:
            yield
        finally:
            stream.close("the attempt ended")
            if self._streams.get(job_id) is stream:
                del self._streams[job_id]
