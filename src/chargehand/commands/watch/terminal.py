"""A job on a terminal: its states line by line, beneath them what it waits for, and a chat's tokens as they come."""

import sys
import time

from rich.console import Console
from rich.status import Status
from rich.text import Text

from chargehand.client import ClientError, Token
from chargehand.commands.doors import AnyEvent, JobEnding, Seen
from chargehand.commands.text import OF_WORDS, clean, clean_lines, lasted, paint
from chargehand.commands.watch.show import Show, answer_of, dim, event_line, last_line

ANSWERING = "working"  # the state of a chat whose model writes its answer


class Terminal(Show):
    def __init__(self) -> None:
        super().__init__()
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._began = time.monotonic()
        self._word = ""
        self._why = ""
        self._said = ""  # the answer of the running attempt, as far as it is shown
        self._repeated = 0  # how much of it has come again over a new connection
        self._early: list[Token] = []  # tokens that came before the event of their state
        self._mid_line = False
        self._to_terminal = sys.stdout.isatty()  # and not to a file or pipe
        self._tokens = 0
        self._spin("asking the server")

    # what happens -------------------------------------------------------------------------------------------------------

    def event(self, event: AnyEvent, seen: Seen) -> None:
        self._word = seen.word or self._word
        if seen.move != "note":
            self._why = ""
        if self._said and seen.move in ("park", "retry", "claim"):
            self._said, self._repeated = "", 0
            self._line(dim("the answer begins again"))
        if line := event_line(seen):
            self.close()
            self._line(paint(line, OF_WORDS.get(seen.outcome, "dim"), sys.stderr))
        if not seen.outcome:
            self._spin(self._now())
        if self._word == ANSWERING:
            early, self._early = self._early, []
            for each in early:
                self.token(each)

    def token(self, token: Token) -> None:
        if self._word != ANSWERING:
            self._early.append(token)
            return
        if token.thinking:
            self._write(dim(clean_lines(token.thinking)), answer=False)
        if token.text:
            self._answer(token.text)

    def _answer(self, text: str) -> None:
        if not self._to_terminal:
            self._tokens += 1  # the file or pipe gets the whole answer at the end
            self._spin(f"{self._now()}, {self._tokens} tokens")
            return
        known = self._said[self._repeated : self._repeated + len(text)]
        if known == text:
            self._repeated += len(text)
            return
        if known or self._repeated != len(self._said):
            self._line(dim("the answer begins again"))
            self._said = ""
        self._said += text
        self._repeated = len(self._said)
        self._write(clean_lines(text), answer=True)

    def waits(self, why: str) -> None:
        """Called from another thread: it only changes the text of a spinner that there is."""
        self._why = clean(why)
        if (status := self._status) is not None:
            status.update(_spinning(self._now()))

    def away(self, error: ClientError) -> None:
        if self._mid_line:  # of an answer
            self._line("")
        self._spin(f"the server is away ({clean(str(error))}); the job is safe, trying again")

    def reconnected(self) -> None:
        self._repeated = 0

    def back(self) -> None:
        if not self._mid_line:
            self._spin(self._now())

    def end(self, job_id: str, end: JobEnding) -> None:
        self.close()
        answer = answer_of(end.result) if end.outcome == "succeeded" else ""
        if answer and (answer != self._said or not self._to_terminal):
            self._line("")
            print(clean_lines(answer) if self._to_terminal else answer, flush=True)
        self._line(paint(last_line(job_id, end), OF_WORDS.get(end.outcome, ""), sys.stderr))

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    # how it is drawn ----------------------------------------------------------------------------------------------------

    def _now(self) -> str:
        took = lasted(time.monotonic() - self._began)
        return f"{self._word or 'asking the server'}, {took}" + (f": {self._why}" if self._why else "")

    def _spin(self, text: str) -> None:
        shown = _spinning(text)
        if self._status is None:
            if self._mid_line:
                return  # a spinner would draw over the answer
            self._status = Status(shown, console=self._console)
            self._status.start()
        else:
            self._status.update(shown)

    def _write(self, text: str, *, answer: bool) -> None:
        self.close()  # first: while a spinner turns, rich replaces sys.stdout
        print(text, end="", file=sys.stdout if answer else sys.stderr, flush=True)
        self._mid_line = True

    def _line(self, text: str) -> None:
        self.close()
        if self._mid_line:
            print(file=sys.stderr, flush=True)
        self._mid_line = False
        if text:
            print(text, file=sys.stderr, flush=True)


def _spinning(text: str) -> Text:
    """Text without markup: nothing that a server or a model says can draw."""
    return Text(text, style="dim", overflow="ellipsis", no_wrap=True)
