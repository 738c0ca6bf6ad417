"""Lists come a page at a time."""

import msgspec


class Page(msgspec.Struct, frozen=True):
    """A page of any list: its items have a name of their own, `next` is the cursor of the next page; None: this is the last."""

    next: str | None = None
