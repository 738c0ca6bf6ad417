"""Text for people: plain columns that look the same on a terminal, in a pipe and in a ticket; colours only on a terminal."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

# The colour of a word wherever it stands as one.
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
    "paused": "yellow",
    "pending": "yellow",
    "warning": "yellow",
}


def clean(text: str) -> str:
    """One line without anything that a terminal would obey: what others say is not to be trusted with that."""
    return "".join(each if each.isprintable() else " " for each in text).rstrip()


def clean_lines(text: str) -> str:
    """The same for text that may have lines."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


def columns(rows: Iterable[Sequence[str]], indent: str = "", styles: Mapping[str, str] = {}) -> list[str]:
    """Left-aligned, two spaces between; the last column is as long as it is. A cell's first word may have a style."""
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
    """The first row is the head."""
    head, *lines = columns(rows, styles=OF_WORDS)
    return [paint(head, "bold"), *lines]


# colours ----------------------------------------------------------------------------------------------------------------


def colourful(out: IO[str]) -> bool:
    """As no-color.org asks: any NO_COLOR that is not empty means none."""
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
    """The time of the day where the reader is, and where that is: in a ticket it is read elsewhere."""
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
    """Until now, if it has not ended."""
    first, last = moment(began), moment(ended) or datetime.now(UTC)
    return max(0.0, (last - first).total_seconds()) if first else 0.0


def ago(text: str | None) -> str:
    """How long it is since then, or how long it is until then; short, for a column."""
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
