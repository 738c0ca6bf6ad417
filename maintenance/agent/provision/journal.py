"""Lines for the journal, and keeping secrets out of what is sent of it."""

import sys
from collections.abc import Iterable

HIDDEN = "[hidden]"
SHORTEST = 6  # a secret of fewer characters would hide half of every line


def say(message: str) -> None:
    """One line: what a program or a server sent cannot forge a second one, nor move the cursor of a console."""
    print("".join(each if each.isprintable() else " " for each in message), file=sys.stderr, flush=True)


class Secrets:
    """`words` are hidden wherever they stand, `lines` where they are a whole line: a file of many lines is looked up, not searched."""

    def __init__(self, words: Iterable[str] = (), lines: Iterable[str] = ()) -> None:
        self._words = sorted({word for word in words if len(word) >= SHORTEST}, key=len, reverse=True)
        self._lines = {line.strip() for line in lines if len(line.strip()) >= SHORTEST}

    def hide(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, HIDDEN)
        return "\n".join(HIDDEN if line.strip() in self._lines else line for line in text.split("\n"))
