"""THE TABLE of what can go wrong at a target and what is done about it. The first row that fits decides.

`docs/inference.md` shows this table; each row has a test.
"""

import re
from collections.abc import Callable
from enum import Enum

import msgspec

BUSY_SECONDS = 1.0
BUSY_MAX_SECONDS = 15.0
CLOUD_SECONDS = 30.0


class Symptom(Enum):
    """What was observed."""

    UNREACHABLE = "no connection"
    SILENCE = "silence, and the side probe fails"
    RESET = "reset or end before an answer"
    STATUS = "a bad status"
    ERROR_LINE = "an error in mid-stream"
    CUT = "an end without done:true"


class FailureAction(Enum):
    AWAY = "wait for the target; the attempt does not count"
    BUSY = "come back soon; the attempt does not count"
    LATER = "come back when the target says; the attempt does not count"
    ELSEWHERE = "another target, else fail"
    RETRY = "again; the attempt counts"
    RETRY_ONCE = "once more; the attempt counts"
    MAKE_ROOM = "evict the others and once more; the attempt counts"
    FAIL = "fail now"


class Observed(msgspec.Struct, frozen=True):
    event: Symptom
    text: str = ""
    status: int = 0
    path: str = ""
    cloud: bool = False
    alive: bool = True  # by the liveness probe
    repeats: bool = False  # the output had begun to repeat one token
    retry_after_seconds: float | None = None


class FailureRow(msgspec.Struct, frozen=True):
    observation: str
    fits: Callable[[Observed], bool]
    kind: str
    action: FailureAction
    advice: str = ""


_PERMANENT = re.compile(r"must be of type|invalid format|format must|template|invalid option", re.IGNORECASE)
_MEMORY = re.compile(
    r"out of memory|memory .*than is available|not enough memory|too large|unable to allocate|failed to allocate|cudamalloc|\boom\b",
    re.IGNORECASE,
)
_CALLERS_FAULT = re.compile(r"not support|capab|length|exceed|invalid|unmarshal|missing|required", re.IGNORECASE)
_NO_MEMORY = (
    "it does not fit into the target's memory: choose a smaller model or num_ctx, or give the target fewer slots"
)


def _status(*codes: int) -> Callable[[Observed], bool]:
    return lambda seen: seen.event is Symptom.STATUS and seen.status in codes


def _says(pattern: re.Pattern[str]) -> Callable[[Observed], bool]:
    return lambda seen: seen.event is Symptom.STATUS and seen.status == 500 and bool(pattern.search(seen.text))


def _embed_400(seen: Observed) -> bool:
    return seen.event is Symptom.STATUS and seen.status == 400 and seen.path == "/api/embed"


# fmt: off
TABLE = (
    FailureRow("refused, unreachable, unknown name, no connection in time", lambda seen: seen.event is Symptom.UNREACHABLE, "target away", FailureAction.AWAY),
    FailureRow("connected, then silence, and the side probe fails", lambda seen: seen.event is Symptom.SILENCE, "target slept", FailureAction.AWAY),
    FailureRow("reset or end before an answer, and the target is gone", lambda seen: seen.event is Symptom.RESET and not seen.alive, "target away", FailureAction.AWAY),
    FailureRow("reset or end before an answer, and the target is alive", lambda seen: seen.event is Symptom.RESET, "crash", FailureAction.RETRY),
    FailureRow("429, or 502 and 503 of a cloud model", lambda seen: _status(429)(seen) or (seen.cloud and _status(502, 503)(seen)), "cloud", FailureAction.LATER),
    FailureRow("503", _status(503), "target busy", FailureAction.BUSY),
    FailureRow("404 for the model", _status(404), "no such model", FailureAction.ELSEWHERE, "pull it there, or put the name right"),
    FailureRow("400 on /api/embed whose text blames the request", lambda seen: _embed_400(seen) and bool(_CALLERS_FAULT.search(seen.text)),
        "permanent", FailureAction.FAIL),
    FailureRow("400 on /api/embed otherwise", _embed_400, "ambiguous", FailureAction.RETRY_ONCE),
    FailureRow("any other status from 400 to 499", lambda seen: seen.event is Symptom.STATUS and 400 <= seen.status < 500, "permanent", FailureAction.FAIL),
    FailureRow("500 about memory", _says(_MEMORY), "resource", FailureAction.MAKE_ROOM, _NO_MEMORY),
    FailureRow("500 about the type of an option, the format or the template", _says(_PERMANENT), "permanent", FailureAction.FAIL),
    FailureRow("any other bad status, such as a runner that stopped or a load that stalled", lambda seen: seen.event is Symptom.STATUS, "transient", FailureAction.RETRY),
    FailureRow("an error line in mid-stream", lambda seen: seen.event is Symptom.ERROR_LINE, "transient", FailureAction.RETRY),
    FailureRow("an end in mid-stream, and the target is gone", lambda seen: seen.event is Symptom.CUT and not seen.alive, "target away", FailureAction.AWAY),
    FailureRow("an end without done:true while one token was repeated", lambda seen: seen.event is Symptom.CUT and seen.repeats, "degenerate", FailureAction.FAIL,
        "the model repeated one token until the target stopped it: another prompt, temperature or repeat_penalty may help"),
    FailureRow("an end without done:true", lambda seen: seen.event is Symptom.CUT, "truncated", FailureAction.RETRY),
)
# fmt: on


def classify(seen: Observed) -> FailureRow:
    return next(row for row in TABLE if row.fits(seen))
