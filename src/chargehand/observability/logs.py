"""Structured logs: JSON for machines, lines for people; libraries' log records take the same path as ours.

`redact` runs after all processors that add fields and before those that write, so it sees everything.
"""

import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from io import StringIO
from typing import Any, Literal, TextIO

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import ExceptionRenderer
from structlog.stdlib import ProcessorFormatter
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor, WrappedLogger

Format = Literal["auto", "human", "json"]

HIDDEN = "***"
HANDLER = "chargehand"
DEEPEST = 8  # deeper structures are shown as text

_secret_key = re.compile(
    r"authorization|passw|passphrase|secret|token|cookie|signature|credential|keys?$", re.IGNORECASE
)
_public_key = re.compile(r"(?:idempotency|public)[_-]?key$", re.IGNORECASE)
# A password that was not percent-encoded may hold any character: remove everything up to the last @ of a database's URL.
_userinfo = re.compile(r"\b(https?://)[^\s/?#]*@|\b(postgres(?:ql)?://)\S*@", re.IGNORECASE)
_query = re.compile(r"(\b(?:https?|postgres(?:ql)?)://[^\s?#\"]*)[?#][^\s\"]*", re.IGNORECASE)


def configure_logs(
    level: str = "info", format: Format = "auto", stream: TextIO | None = None, process: int = 0
) -> None:
    """Set up all logging of the process; may be called again. `process` is its number, if it is one of several."""
    stream = stream or sys.stderr
    human = format == "human" or (format == "auto" and stream.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    enrich: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        *([_numbered(process)] if process else []),
    ]
    finish: list[Processor] = [redact, _human(stream.isatty())] if human else [_exception, redact, _json]
    structlog.configure(
        processors=[*enrich, *finish],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda name="": _Lines(stream, name),
        cache_logger_on_first_use=False,  # loggers created at import time must follow a later call of this function
    )
    handler = _Routed(_Lines(stream, HANDLER))
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=enrich, processors=[ProcessorFormatter.remove_processors_meta, *finish])
    )
    root = logging.getLogger()
    root.handlers[:] = [other for other in root.handlers if other.name != HANDLER] + [handler]
    root.setLevel(number)


def get_logger(name: str) -> FilteringBoundLogger:
    logger: FilteringBoundLogger = structlog.get_logger(name)
    return logger


def _numbered(process: int) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**event, "process": process}

    return add


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Processor that hides every value that looks like a secret."""
    return {key: value if key == "exc_info" else scrub(key, value) for key, value in event.items()}


def scrub(key: str, value: Any, depth: int = 0) -> Any:
    """Return the value as plain data that is safe to show under this key."""
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "reveal"):
        return HIDDEN
    if _is_secret(key) and not (isinstance(value, int | float) and key.lower().endswith("tokens")):  # a model's count
        return HIDDEN
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth < DEEPEST:
        if isinstance(value, Mapping):
            return {str(name): scrub(str(name), item, depth + 1) for name, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [scrub("", item, depth + 1) for item in value]
    try:
        return scrub_text(repr(value) if isinstance(value, BaseException) else str(value))
    except Exception:
        return f"<{type(value).__name__}>"


def scrub_text(text: str) -> str:
    """Remove userinfo, query and fragment from URLs in the text."""
    return _query.sub(r"\1", _userinfo.sub(r"\1\2", text)) if "://" in text else text


@lru_cache(maxsize=4096)
def _is_secret(key: str) -> bool:
    return _secret_key.search(key) is not None and _public_key.search(key) is None


# Without locals: the variables of a frame may hold secrets.
_exception = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def _json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    first = {key: event.pop(key, None) for key in ("ts", "level", "event")}
    return json.dumps(first | dict(event))


def _human(colors: bool) -> ConsoleRenderer:
    def traceback(out: TextIO, error: ExcInfo) -> None:
        written = StringIO()
        plain_traceback(written, error)
        out.write(scrub_text(written.getvalue()))

    return ConsoleRenderer(colors=colors, timestamp_key="ts", exception_formatter=traceback, pad_event_to=0)


class _Lines:
    """Writes to the stream. On a full disk or a closed pipe the line is lost, but the caller goes on."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self.name = name

    def msg(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = msg


class _Routed(logging.Handler):
    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self.name = HANDLER
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.msg(self.format(record))
        except Exception:
            self.handleError(record)
