"""The messages in a BMC's answers (extended information): as one line of text, and which parameter they blame."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

LONGEST = 400
_READ = 8192  # characters of the messages; they are shortened only after secrets were removed

_MISSING_IDS = ("ActionParameterMissing", "PropertyMissing", "CreateFailedMissingReqProperties", "ParameterMissing")
_UNWANTED_IDS = (
    *("ActionParameterNotSupported", "ActionParameterUnknown", "PropertyUnknown", "PropertyNotWritable"),
    *("ActionParameterValueNotInList", "PropertyValueNotInList", "ActionParameterValueFormatError"),
)
_MISSING = re.compile(r"\b(?:missing|required?|requires|mandatory)\b", re.IGNORECASE)
_UNWANTED = re.compile(
    r"not (?:supported|allowed|writable|valid)|unsupported|unknown|unrecogni|unexpected", re.IGNORECASE
)
_IMAGE = re.compile(
    r"download|fetch|unreachable|could not (?:reach|connect|open|access)|\b404\b|timed? ?out|no such file",
    re.IGNORECASE,
)


class RedfishMessage(msgspec.Struct, frozen=True):
    id: str  # without registry and version: "ActionParameterMissing"
    text: str
    names: tuple[str, ...] = ()  # the parameters or properties that it is about


class RedfishMessages(msgspec.Struct, frozen=True):
    text: str = ""
    messages: tuple[RedfishMessage, ...] = ()

    def has(self, *ids: str) -> bool:
        return any(message.id in ids for message in self.messages)

    @property
    def about_image(self) -> bool:
        """Could the BMC not fetch the image? Then another payload would not help."""
        return bool(_IMAGE.search(self.text))

    def blames(self, known: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Return which of the known parameters are missing, and which are not wanted."""
        missing: set[str] = set()
        unwanted: set[str] = set()
        for message in self.messages:
            named = {name for name in known if name in message.names or re.search(rf"\b{name}\b", message.text)}
            if message.id in _MISSING_IDS:
                missing |= named
            elif message.id in _UNWANTED_IDS or _UNWANTED.search(message.text):
                unwanted |= named
            elif _MISSING.search(message.text):
                missing |= named
        return frozenset(missing), frozenset(unwanted)


NOTHING = RedfishMessages()


def said(data: Any) -> RedfishMessages:
    """Return the messages of an answer or a task, in any of the usual formats."""
    messages = tuple(_messages(data))
    texts = dict.fromkeys(message.text or message.id for message in messages)
    whole = _text(data.get("error"), "message") if isinstance(data, dict) else ""
    # A general error says "see the extended information"; it is used only if that has no text.
    if whole and not any(message.text for message in messages):
        texts = {whole: None}
    return RedfishMessages("; ".join(texts)[:_READ], messages or ((RedfishMessage("", whole),) if whole else ()))


def one_line(text: str) -> str:
    """Return the text without control characters and line breaks, shortened."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in text[:_READ]).split())
    return clean if len(clean) <= LONGEST else clean[: LONGEST - 1] + "…"


def _messages(data: Any) -> Iterator[RedfishMessage]:
    if not isinstance(data, dict):
        return
    error = data.get("error")
    places = [error.get("@Message.ExtendedInfo")] if isinstance(error, dict) else []
    places += [data.get("@Message.ExtendedInfo"), data.get("Messages")]  # the last one is for tasks
    for place in places:
        for item in place if isinstance(place, list) else [place]:
            if isinstance(item, dict):
                names = [str(arg) for arg in _list(item, "MessageArgs")]
                names += [str(path).rpartition("/")[2] for path in _list(item, "RelatedProperties")]
                yield RedfishMessage(_text(item, "MessageId").rpartition(".")[2], _text(item, "Message"), tuple(names))


def _text(data: Any, key: str) -> str:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, str) else ""


def _list(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    return value if isinstance(value, list) else []
