"""What each door is sent for a new job."""

from typing import Any, NamedTuple

import msgspec

from chargehand.commands.refusals import refuse


class Wish(NamedTuple):
    """What was said on the command line, whichever door it is for."""

    text: bytes
    webhook: str = ""
    priority: int | None = None
    delay: float = 0.0
    max_attempts: int | None = None
    system: str = ""
    options: tuple[str, ...] = ()


class Submission(NamedTuple):
    kind: str
    path: str
    body: dict[str, Any]
    id_field: str = "job_id"


def chat(model: str, wish: Wish) -> Submission:
    try:
        prompt = wish.text.decode()
    except UnicodeDecodeError:
        refuse("the prompt is not UTF-8")
    if not prompt.strip():
        refuse("the prompt is empty")
    messages = [{"role": "user", "content": prompt}]
    if wish.system:
        messages.insert(0, {"role": "system", "content": wish.system})
    options = dict(_option(each) for each in wish.options)
    body = {
        "model": model,
        "messages": messages,
        **({"options": options} if options else {}),
        **({"state_webhook_url": wish.webhook} if wish.webhook else {}),
        **_engine_fields(wish),
    }
    return Submission("inference", "/jobs", body)


def task(command: str, wish: Wish) -> Submission:
    body = {
        "command": command,
        "payload": payload(wish.text),
        **({"webhook": wish.webhook} if wish.webhook else {}),
        **({"priority": wish.priority} if wish.priority is not None else {}),
        **({"maxAttempts": wish.max_attempts} if wish.max_attempts else {}),
        **({"delaySeconds": wish.delay} if wish.delay else {}),
    }
    return Submission("task", "/v1/codeq/tasks", body, "id")


def recipe(serial: str, name: str, wish: Wish) -> Submission:
    body = {
        "server_serial": serial,
        "recipe": payload(wish.text, name),
        **({"webhook": {"url": wish.webhook}} if wish.webhook else {}),
        **({"priority": wish.priority} if wish.priority is not None else {}),
    }
    return Submission("provision", "/api/v1/jobs", body)


def job(queue: str, wish: Wish) -> Submission:
    webhook = {"webhook": {"url": wish.webhook}} if wish.webhook else {}
    return Submission("job", "/engine/jobs", {"queue": queue, "payload": payload(wish.text), **webhook, **_engine_fields(wish)})  # fmt: skip


def _engine_fields(wish: Wish) -> dict[str, Any]:
    said = {"priority": wish.priority, "max_attempts": wish.max_attempts, "delay_seconds": wish.delay or None}
    return {name: value for name, value in said.items() if value is not None}


def payload(text: bytes, name: str = "the payload") -> msgspec.Raw:
    """As it was written: no digit of a large number is lost."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = text[:40].decode("utf-8", "replace").strip()
        hint = "" if name != "the payload" or text[:1] in b"{[" else f"; text needs quotes: '\"{shown}\"'"
        refuse(f"{name} is not JSON: {error}{hint}")
    return msgspec.Raw(text)


def _option(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        refuse(f"--option {text}: write it as NAME=VALUE, such as temperature=0")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
