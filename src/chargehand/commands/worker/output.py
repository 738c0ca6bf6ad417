"""What a program writes: its result on stdout, progress and reasons on stderr."""

import codecs
import contextlib
import re
from collections import deque
from typing import Any

import msgspec

from chargehand.client import Fail, Held

MAX_OBJECT = 8 << 20  # a longer result is kept as text, not as an object
MAX_TEXT = 1 << 20
MAX_REASON = 4 << 10
STDOUT = "stdout"  # the file of a result that is not text

_PROGRESS = re.compile(r"progress\s+(\d{1,3}(?:\.\d+)?)%?(?:\s+(.*))?")


class StandardOutput:
    """The beginning of stdout, up to a limit, and its whole length."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._length = 0

    def add(self, chunk: bytes) -> None:
        self._length += len(chunk)
        self._kept += chunk[: MAX_OBJECT - len(self._kept)]

    def result(self, task: Held) -> dict[str, Any]:
        """The JSON object on stdout; other text is the text in one, and what is no text becomes a file of the task."""
        if self._length == len(self._kept):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                value = msgspec.json.decode(self._kept)
                if isinstance(value, dict):
                    return value
        cut = self._length > MAX_TEXT
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(bytes(self._kept[:MAX_TEXT]), final=not cut)
        except UnicodeDecodeError:
            return self._as_file(task)
        return {"output": text, "note": f"cut at {MAX_TEXT} of {self._length} bytes"} if cut else {"output": text}

    def _as_file(self, task: Held) -> dict[str, Any]:
        if self._length > len(self._kept):
            raise Fail(
                f"stdout has {self._length} bytes that are not UTF-8, and at most {MAX_OBJECT} can be kept; "
                "write to a file in $CHARGEHAND_FILES"
            )
        task.attach(STDOUT, bytes(self._kept), "application/octet-stream")
        return {"output_file": STDOUT}


class StandardError:
    """Reports the progress lines of stderr, and keeps the end of the others."""

    def __init__(self, task: Held) -> None:
        self._task = task
        self._begun = b""
        self._lines: deque[bytes] = deque()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        *whole, self._begun = (self._begun + chunk).split(b"\n")
        for line in whole:
            self._line(line)
        self._begun = self._begun[-MAX_REASON:]

    def reason(self, otherwise: str) -> str:
        tail = b"\n".join([*self._lines, self._begun])[-MAX_REASON:].decode("utf-8", "replace").strip()
        return tail or otherwise

    def _line(self, line: bytes) -> None:
        if said := _PROGRESS.fullmatch(line.decode("utf-8", "replace").strip()):
            self._task.progress(min(100.0, float(said[1])), said[2])
            return
        self._lines.append(line[-MAX_REASON:])
        self._size += len(self._lines[-1]) + 1
        while self._size > 2 * MAX_REASON and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1
