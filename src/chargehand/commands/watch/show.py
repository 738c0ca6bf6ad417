"""`chargehand watch`: what happens to a job goes to stderr as it happens, and what comes of it to stdout, so that it can be piped.

On a terminal a chat's tokens are shown as they come. Into a pipe the answer goes once it is whole: a target that goes away in the
middle makes the job begin again, and half an answer before the whole one would be in nobody's interest.
"""

import asyncio
import contextlib
import sys
from typing import Any, Protocol

import msgspec

from chargehand.client import AsyncClient, ClientError
from chargehand.client.answer import StreamedAnswer
from chargehand.client.types.inference import Token
from chargehand.commands.calling import Api, Json
from chargehand.commands.doors import Door, Ending, Seen, ending
from chargehand.commands.text import clean, clock, paint
from chargehand.commands.watch.following import follow, last_start
from chargehand.commands.watch.notices import Presence

LOOK_SECONDS = 2.0  # why a job waits is no event


class Show(Protocol):
    """How a job is shown while it happens, and at its end."""

    def event(self, event: Json, seen: Seen) -> None: ...

    def token(self, text: str, thinking: str) -> None: ...

    def waits(self, why: str) -> None: ...

    def away(self, error: ClientError) -> None: ...

    def back(self) -> None: ...

    def end(self, door: Door, job_id: str, end: Ending) -> None: ...

    def close(self) -> None: ...


async def watch(api: Api, door: Door, job_id: str, token: str, *, as_json: bool) -> str:
    """The outcome: succeeded, failed or cancelled."""
    if door.kind == "provision" and not as_json:
        from chargehand.commands.provision.watch import watch as watch_machine

        async with AsyncClient(api.url, token) as client:
            return await watch_machine(client.provisioning, job_id) or "failed"
    show = _show(as_json)
    looking: asyncio.Task[None] | None = None
    try:
        after = await last_start(api, door, job_id)
        if not as_json and sys.stderr.isatty():
            looking = asyncio.create_task(_look(api, door, job_id, show))
        outcome = ""
        async for event in follow(api, door, job_id, after, away=show.away, back=show.back):
            if "sequence" not in event:
                show.token(*words_of(event))
                continue
            seen = door.seen(event)
            outcome = seen.outcome or outcome
            show.event(event, seen)
        end = await ending(api, door, job_id, outcome)
        if looking is not None:
            looking.cancel()
        show.end(door, job_id, end)
        return end.outcome
    finally:
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        show.close()


def _show(as_json: bool) -> Show:
    if as_json:
        return JsonLines()
    if sys.stderr.isatty():
        from chargehand.commands.watch.terminal import Terminal

        return Terminal()
    return Lines()


async def _look(api: Api, door: Door, job_id: str, show: Show) -> None:
    while True:
        with contextlib.suppress(ClientError):
            job = await api.get(door.job.format(id=job_id), retries=0)
            why = job.get("waiting") or job.get("waiting_for") or ""
            before = job.get("position")
            show.waits(f"{why}; {before} before it" if why and before else why)
        await asyncio.sleep(LOOK_SECONDS)


def words_of(line: Json) -> tuple[str, str]:
    """What a line of Ollama's stream says, and what it thinks."""
    message = line.get("message") or {}
    return str(message.get("content") or line.get("response") or ""), str(
        message.get("thinking") or line.get("thinking") or ""
    )


def answer_of(result: Any) -> str:
    """The answer of a model as text; any other result as JSON."""
    if isinstance(result, dict):
        text, _ = words_of(result)
        if text:
            return text
    return "" if result is None else msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def measured(end: Ending) -> str:
    """What is known of the attempt that a model's answer came from."""
    evidence = end.job.get("evidence") or {}
    parts = [f"{evidence['seconds']:.1f} s"] if evidence.get("seconds") else []
    if tokens := evidence.get("tokens"):
        spent = (evidence.get("seconds") or 0) - (evidence.get("first_token_seconds") or 0)
        parts.append(f"{tokens} tokens" + (f" ({tokens / spent:.0f} a second)" if spent > 0.01 else ""))
    if evidence.get("first_token_seconds") is not None:
        parts.append(f"the first after {evidence['first_token_seconds']:.2f} s")
    if evidence.get("target"):
        parts.append(f"by {evidence['target']}")
    return ", ".join(parts)


def last_line(door: Door, job_id: str, end: Ending) -> str:
    what = f"{job_id} {end.outcome}" if end.outcome != "cancelled" else f"{job_id} was cancelled"
    if end.outcome == "failed":
        what += f": {clean(end.error) or 'it did not say why'}"
        again = "" if door.retry is None else f"; to try it again: chargehand jobs retry {job_id}"
        return what + again
    known = measured(end) if door.kind == "inference" else ""
    return f"{what} ({known})" if known else what


class Quiet(Presence):
    """Whoever reads this later does not care what was waited for."""

    def waits(self, why: str) -> None:
        pass

    def close(self) -> None:
        pass


class Lines(Quiet):
    """For pipes and logs."""

    def event(self, event: Json, seen: Seen) -> None:
        if line := event_line(seen):
            print(line, file=sys.stderr, flush=True)

    def token(self, text: str, thinking: str) -> None:
        pass

    def end(self, door: Door, job_id: str, end: Ending) -> None:
        if end.outcome == "succeeded":
            print(answer_of(end.result), flush=True)
        print(last_line(door, job_id, end), file=sys.stderr, flush=True)


class JsonLines(Quiet):
    """An object a line, each with its `type`: event, token, end."""

    def __init__(self) -> None:
        super().__init__()
        self._telling = StreamedAnswer()

    def back(self) -> None:
        super().back()
        self._telling.begin()

    def event(self, event: Json, seen: Seen) -> None:
        if seen.word == "queued":
            self._telling.begin()  # the next attempt speaks from its first word on
        self._print("event", event)

    def token(self, text: str, thinking: str) -> None:
        if told := self._telling.hear(Token(text, thinking)):
            said = {"text": told.text, "thinking": told.thinking, "restarted": told.restarted}
            self._print("token", {name: value for name, value in said.items() if value or name == "text"})

    def end(self, door: Door, job_id: str, end: Ending) -> None:
        self._print("end", {"job_id": job_id, "outcome": end.outcome, "result": end.result, "error": end.error or None})

    def _print(self, kind: str, told: Json) -> None:
        print(msgspec.json.encode({"type": kind, **told}).decode(), flush=True)


def event_line(seen: Seen) -> str:
    """Empty: nothing that people would want to know."""
    if not seen.word and (not seen.text or seen.move == "claim"):
        return ""  # a runner of the server itself: what it does with the job is told next
    percent = f"{seen.percent:.0f} % " if seen.percent is not None else ""
    return f"{clock(seen.at)}  {seen.word or '-':<12}  {percent}{clean(seen.text)}".rstrip()


def dim(text: str) -> str:
    return paint(text, "dim", sys.stderr)
