"""Show a job while it happens: as plain lines, or as JSON. `terminal.py` is for terminals.

A terminal shows a chat's tokens as they come. A pipe gets the whole answer at the end: a target that goes away makes the job begin
again, and the reader of a pipe has no use for half an answer before the whole one.
"""

import sys
from typing import Any

import msgspec

from chargehand.client import Token
from chargehand.client.answer import StreamedAnswer
from chargehand.client.types.inference import Job, token_of
from chargehand.commands.doors import AnyEvent, JobEnding, Seen
from chargehand.commands.text import clean, clock, paint
from chargehand.commands.watch.notices import AwayNotices


class Show(AwayNotices):
    """One way to show a job. It need not show tokens, nor why a job waits."""

    def event(self, event: AnyEvent, seen: Seen) -> None:
        raise NotImplementedError

    def token(self, token: Token) -> None:
        pass

    def reconnected(self) -> None:
        """The tokens of the running attempt come again from the first on."""

    def waits(self, why: str) -> None:
        pass

    def end(self, job_id: str, end: JobEnding) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class PlainLines(Show):
    """For pipes and logs."""

    def event(self, event: AnyEvent, seen: Seen) -> None:
        if line := event_line(seen):
            print(line, file=sys.stderr, flush=True)

    def end(self, job_id: str, end: JobEnding) -> None:
        if end.outcome == "succeeded":
            print(answer_of(end.result), flush=True)
        print(last_line(job_id, end), file=sys.stderr, flush=True)


class JsonLines(Show):
    """An object a line, each with its `type`: event, token, end."""

    def __init__(self) -> None:
        super().__init__()
        self._answer = StreamedAnswer()

    def reconnected(self) -> None:
        self._answer.restart()

    def event(self, event: AnyEvent, seen: Seen) -> None:
        if seen.word == "queued":
            self._answer.restart()  # the next attempt begins with its first token
        self._print("event", msgspec.to_builtins(event))

    def token(self, token: Token) -> None:
        if news := self._answer.add(token):
            fields = {"text": news.text, "thinking": news.thinking, "restarted": news.restarted}
            self._print("token", {name: value for name, value in fields.items() if value or name == "text"})

    def end(self, job_id: str, end: JobEnding) -> None:
        self._print("end", {"job_id": job_id, "outcome": end.outcome, "result": end.result, "error": end.error or None})

    def _print(self, kind: str, fields: dict[str, Any]) -> None:
        print(msgspec.json.encode({"type": kind, **fields}).decode(), flush=True)


def event_line(seen: Seen) -> str:
    """Empty for an event that people do not need."""
    if not seen.word and (not seen.text or seen.move == "claim"):
        return ""  # the claim of a runner of the server itself: the next event says what it does
    percent = f"{seen.percent:.0f} % " if seen.percent is not None else ""
    return f"{clock(seen.at)}  {seen.word or '-':<12}  {percent}{clean(seen.text)}".rstrip()


def last_line(job_id: str, end: JobEnding) -> str:
    if end.outcome == "failed":
        again = f"; to try it again: {end.how_to_retry}" if end.how_to_retry else ""
        return f"{job_id} failed: {clean(end.error) or 'the server gives no reason'}{again}"
    known = measured(end.job) if isinstance(end.job, Job) else ""
    what = f"{job_id} was cancelled" if end.outcome == "cancelled" else f"{job_id} {end.outcome}"
    return f"{what} ({known})" if known else what


def answer_of(result: Any) -> str:
    """The answer of a model as text; any other result as JSON."""
    if text := token_of(result).text:
        return text
    return "" if result is None else msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def measured(job: Job) -> str:
    """How long the attempt took that the answer came from, its tokens and its target."""
    evidence = job.evidence
    if evidence is None:
        return ""
    parts = [f"{evidence.seconds:.1f} s"] if evidence.seconds else []
    if evidence.tokens:
        spent = (evidence.seconds or 0) - (evidence.first_token_seconds or 0)
        rate = f" ({evidence.tokens / spent:.0f} a second)" if spent > 0.01 else ""
        parts.append(f"{evidence.tokens} tokens{rate}")
    if evidence.first_token_seconds is not None:
        parts.append(f"the first after {evidence.first_token_seconds:.2f} s")
    parts += [f"by {evidence.target}"] if evidence.target else []
    return ", ".join(parts)


def dim(text: str) -> str:
    return paint(text, "dim", sys.stderr)
