"""Text for people: plain columns, which are the same on a terminal and in a pipe; colours on a terminal only; times."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

# The colour of a state, wherever it is a cell of its own.
OF_WORDS = {
    "succeeded": "green",
    "done": "green",
    "delivered": "green",
    "active": "green",
    "up": "green",
    "ok": "green",
    "failed": "red",
    "dead": "red",
    "disabled": "red",
    "away": "yellow",
    "cancelled": "yellow",
    "skipped": "yellow",
    "paused": "yellow",
    "pending": "yellow",
    "warning": "yellow",
}


def clean(text: str) -> str:
    """One line without control characters: text from elsewhere must not control the terminal."""
    return "".join(each if each.isprintable() else " " for each in text).rstrip()


def clean_lines(text: str) -> str:
    """`clean` for text of several lines."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


def shorten(text: str, characters: int) -> str:
    """`clean` for text that may be long."""
    line = clean(text)
    return line if len(line) <= characters else f"{line[: characters - 1]}…"


def columns(rows: Iterable[Sequence[str]], indent: str = "", styles: Mapping[str, str] = {}) -> list[str]:
    """Left-aligned columns, two spaces apart; the last is not padded. `styles` has the style of a cell by its first word."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cleaned, strict=True)]
    lines = []
    for row in cleaned:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        painted = [paint(cell, styles.get(cell.split(",")[0].split(":")[0].strip(), "")) for cell in cells]
        lines.append(indent + "  ".join(painted).rstrip())
    return lines


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns with a heading, the first row."""
    head, *lines = columns(rows, styles=OF_WORDS)
    return [paint(head, "bold"), *lines]


# colours ----------------------------------------------------------------------------------------------------------------


def colourful(out: IO[str]) -> bool:
    """Whether to use colours: not if NO_COLOR is set and not empty (no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def paint(text: str, style: str, out: IO[str] | None = None) -> str:
    code = _CODES.get(style)
    return f"\033[{code}m{text}\033[0m" if code and text and colourful(out or sys.stdout) else text


# times ------------------------------------------------------------------------------------------------------------------


def moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def clock(text: str | None) -> str:
    """The local time of day with its offset, as it may be read elsewhere."""
    return day(text).partition(" ")[2]


def day(text: str | None) -> str:
    at = moment(text)
    return at.astimezone().isoformat(" ", "seconds").replace("+00:00", "Z") if at else ""


def lasted(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


def between(began: str | None, ended: str | None) -> float:
    """Seconds between two instants; until now if there is no second."""
    first, last = moment(began), moment(ended) or datetime.now(UTC)
    return max(0.0, (last - first).total_seconds()) if first else 0.0


def ago(text: str | None) -> str:
    """How long ago an instant was, or in how long it will be; short, for a column."""
    at = moment(text)
    if at is None:
        return "-"
    seconds = (datetime.now(UTC) - at).total_seconds()
    return f"{short(seconds)} ago" if seconds >= 0 else f"in {short(-seconds)}"


def short(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length * (2 if unit != "min" else 1):
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word[:-1]}ies" if word.endswith("y") else f"{count} {word}s"
