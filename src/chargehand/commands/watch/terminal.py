"""A job on a terminal: its states line by line, beneath them what it waits for, and a chat's tokens as they come."""

import sys
import time

from rich.console import Console
from rich.status import Status
from rich.text import Text

from chargehand.client import ClientError
from chargehand.commands.calling import Json
from chargehand.commands.doors import Door, Ending, Seen
from chargehand.commands.text import OF_WORDS, clean, clean_lines, lasted, paint
from chargehand.commands.watch.show import answer_of, dim, event_line, last_line

SPEAKING = "working"  # what the inference door calls a job whose model is at work


class Terminal:
    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._began = time.monotonic()
        self._word = ""
        self._why = ""
        self._said = ""  # of the answer, by the attempt that runs
        self._again = 0  # how much of that the stream has repeated since it began anew
        self._early: list[tuple[str, str]] = []  # tokens that came before the word that there would be some
        self._mid_line = False
        self._is_read_here = sys.stdout.isatty()  # and goes into no file or pipe
        self._tokens = 0
        self._spin("asking the server")

    # what is heard ------------------------------------------------------------------------------------------------------

    def event(self, event: Json, seen: Seen) -> None:
        self._word, self._why = seen.word or self._word, ""
        if self._said and seen.move in ("park", "retry", "claim"):
            self._said, self._again = "", 0
            self._line(dim("the answer begins again"))
        if line := event_line(seen):
            self.close()
            self._line(paint(line, OF_WORDS.get(seen.outcome, "dim"), sys.stderr))
        if not seen.outcome:
            self._spin(self._now())
        if self._word == SPEAKING:
            early, self._early = self._early, []
            for each in early:
                self.token(*each)

    def token(self, text: str, thinking: str) -> None:
        if self._word != SPEAKING:
            self._early.append((text, thinking))
            return
        if thinking:
            self._write(dim(clean_lines(thinking)), answer=False)
        if not text:
            return
        if not self._is_read_here:
            self._tokens += 1  # the whole answer goes there, at the end
            self._spin(f"{self._now()}, {self._tokens} tokens")
            return
        known = self._said[self._again : self._again + len(text)]
        if known == text:
            self._again += len(text)
            return
        if known or self._again != len(self._said):
            self._line(dim("the answer begins again"))
            self._said = ""
        self._said += text
        self._again = len(self._said)
        self._write(clean_lines(text), answer=True)

    def waits(self, why: str) -> None:
        self._why = clean(why)
        if self._status is not None:
            self._spin(self._now())

    def away(self, error: ClientError) -> None:
        if self._mid_line:  # in an answer
            self._line("")
        self._spin(f"the server is away ({clean(str(error))}); the job is safe, trying again")

    def back(self) -> None:
        self._again = 0
        if not self._mid_line:
            self._spin(self._now())

    def end(self, door: Door, job_id: str, end: Ending) -> None:
        self.close()
        answer = answer_of(end.result) if end.outcome == "succeeded" else ""
        if answer and (answer != self._said or not self._is_read_here):
            self._line("")
            print(clean_lines(answer) if self._is_read_here else answer, flush=True)
        self._line(paint(last_line(door, job_id, end), OF_WORDS.get(end.outcome, ""), sys.stderr))

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    # how it is drawn ----------------------------------------------------------------------------------------------------

    def _now(self) -> str:
        took = lasted(time.monotonic() - self._began)
        return f"{self._word or 'asking the server'}, {took}" + (f": {self._why}" if self._why else "")

    def _spin(self, text: str) -> None:
        """Text, never markup: what others say cannot draw."""
        shown = Text(text, style="dim", overflow="ellipsis", no_wrap=True)
        if self._status is None:
            if self._mid_line:
                return  # an answer is being written; a spinner would draw over it
            self._status = Status(shown, console=self._console)
            self._status.start()
        else:
            self._status.update(shown)

    def _write(self, text: str, *, answer: bool) -> None:
        self.close()  # before stdout is looked at: while a spinner turns, rich has one of its own in its place
        print(text, end="", file=sys.stdout if answer else sys.stderr, flush=True)
        self._mid_line = True

    def _line(self, text: str) -> None:
        self.close()
        if self._mid_line:
            print(file=sys.stderr, flush=True)
        self._mid_line = False
        if text:
            print(text, file=sys.stderr, flush=True)
