"""What workers write is cut to a bound, and holds no NUL, which PostgreSQL cannot store in text."""

from msgspec.structs import replace

from chargehand.engine.moves import Change

MAX_TEXT = 10_000  # characters of an error or a message; longer ones are cut


def cut(change: Change) -> Change:
    if not (change.error or change.message or change.waiting_for or change.failed_step or change.step):
        return change
    return replace(
        change,
        error=None if change.error is None else clean(change.error),
        failed_step=None if change.failed_step is None else clean(change.failed_step),
        message=clean(change.message),
        waiting_for=clean(change.waiting_for),
        step=clean(change.step),
    )


def clean(text: str) -> str:
    return text[:MAX_TEXT].replace("\x00", "\ufffd")
