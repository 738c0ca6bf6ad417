"""What `chargehand submit` sends to each door."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from chargehand.client import Client
from chargehand.commands.refusals import refuse


class SubmitOptions(NamedTuple):
    """What the command line says, whichever door it is for."""

    text: bytes
    webhook: str = ""
    priority: int | None = None
    delay: float = 0.0
    max_attempts: int | None = None
    system: str = ""
    options: tuple[str, ...] = ()
    limit_key: str = ""


class Submission(NamedTuple):
    kind: str
    send: Callable[[Client, str], str]  # with an idempotency key; returns the job's id


def chat(model: str, asked: SubmitOptions) -> Submission:
    try:
        prompt = asked.text.decode()
    except UnicodeDecodeError:
        refuse("the prompt is not UTF-8")
    if not prompt.strip():
        refuse("the prompt is empty")
    messages = [{"role": "user", "content": prompt}]
    if asked.system:
        messages.insert(0, {"role": "system", "content": asked.system})
    wishes: dict[str, Any] = {
        "webhook": asked.webhook,
        "options": dict(_option(each) for each in asked.options) or None,
        "priority": asked.priority,
        "max_attempts": asked.max_attempts,
        "delay_seconds": asked.delay or None,
    }

    def send(client: Client, key: str) -> str:
        return client.submit(model, messages, **wishes, idempotency_key=key).job_id

    return Submission("inference", send)


def task(command: str, asked: SubmitOptions) -> Submission:
    body = payload(asked.text)

    def send(client: Client, key: str) -> str:
        return client.tasks.create(
            command,
            body,
            priority=asked.priority or 0,
            webhook=asked.webhook,
            max_attempts=asked.max_attempts or 0,
            idempotency_key=key,
            delay_seconds=asked.delay,
            limit_key=asked.limit_key,
        ).id

    return Submission("task", send)


def recipe(serial: str, name: str, asked: SubmitOptions) -> Submission:
    body = payload(asked.text, name)

    def send(client: Client, key: str) -> str:
        return client.provisioning.submit(
            serial, body, webhook=asked.webhook or None, priority=asked.priority or 0, idempotency_key=key
        ).job_id

    return Submission("provision", send)


def job(queue: str, asked: SubmitOptions) -> Submission:
    body = payload(asked.text)

    def send(client: Client, key: str) -> str:
        return client.engine.submit(
            queue,
            body,
            webhook=asked.webhook,
            priority=asked.priority,
            max_attempts=asked.max_attempts,
            delay_seconds=asked.delay or None,
            limit_key=asked.limit_key or None,
            idempotency_key=key,
        ).job_id

    return Submission("job", send)


class FlowFile(msgspec.Struct, forbid_unknown_fields=True):
    """A flow as a file; the server says what is wrong within its fields."""

    steps: list[msgspec.Raw]
    name: str = ""
    webhook: Any = None
    metadata: msgspec.Raw = msgspec.Raw()


def flow(text: bytes, file: str, name: str, webhook: str) -> Submission:
    """`name` and `webhook` replace those of the file."""
    try:
        asked = msgspec.json.decode(payload(text, file), type=FlowFile)
    except msgspec.ValidationError as error:
        refuse(
            f"{file} is not a flow: {error}; it is an object with `steps`, and if you like `name`, `webhook` and `metadata`"
        )

    def send(client: Client, key: str) -> str:
        parts: dict[str, Any] = {"steps": asked.steps, "metadata": asked.metadata or None}
        return client.flows.submit(
            **parts, name=name or asked.name, webhook=webhook or asked.webhook, idempotency_key=key
        ).job_id

    return Submission("flow", send)


def payload(text: bytes, name: str = "the payload") -> msgspec.Raw:
    """JSON as it was written: no digit of a large number is lost."""
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
