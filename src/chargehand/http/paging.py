"""Lists: newest first, a page at a time. The cursor is an id, so a page stays right while rows are added."""

from typing import Annotated

import msgspec

from chargehand.engine.ids import is_ulid
from chargehand.errors import InvalidField

Limit = Annotated[int, msgspec.Meta(ge=1, le=500, description="How many at most")]
Cursor = Annotated[str, msgspec.Meta(description="`next` of the page before")]


def ulid(field: str, text: str) -> str:
    """Return the id if it is well-formed, else raise InvalidField."""
    if not is_ulid(text):
        raise InvalidField(field, "must be a ULID: 26 characters of 0-9 and A-Z without I, L, O, U")
    return text


def cursor(text: str | None) -> str | None:
    return None if text is None else ulid("cursor", text)
