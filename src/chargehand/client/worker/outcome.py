"""What a function returns, as the result of its task."""

from typing import Any

import msgspec


def as_result(value: Any) -> msgspec.Raw:
    """The result as a JSON object; any other value is put into one."""
    if value is None:
        return msgspec.Raw(b"{}")
    raw = msgspec.json.encode(value)
    return msgspec.Raw(raw if raw.startswith(b"{") else b'{"value":' + raw + b"}")
