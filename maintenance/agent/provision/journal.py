"""Write lines to the journal, and hide secrets in the parts that are sent."""

import sys
from collections.abc import Iterable

HIDDEN = "[hidden]"
SHORTEST = 6  # a shorter secret would hide half of every line


def say(message: str) -> None:
    """Log one line; control characters are replaced, so that no text can forge a second line or move a console's cursor."""
    print("".join(each if each.isprintable() else " " for each in message), file=sys.stderr, flush=True)


class Secrets:
    """Hides `words` anywhere in a text, and `lines` only as whole lines, which is a fast lookup for files of many lines."""

    def __init__(self, words: Iterable[str] = (), lines: Iterable[str] = ()) -> None:
        self._words = sorted({word for word in words if len(word) >= SHORTEST}, key=len, reverse=True)
        self._lines = {line.strip() for line in lines if len(line.strip()) >= SHORTEST}

    def hide(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, HIDDEN)
        return "\n".join(HIDDEN if line.strip() in self._lines else line for line in text.split("\n"))
