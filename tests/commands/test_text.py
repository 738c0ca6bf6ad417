"""Text for people: without control characters, with short times."""

from datetime import UTC, datetime, timedelta

import pytest

from chargehand.commands.text import ago, clean, clean_lines, columns, plural


def test_control_characters_are_removed() -> None:
    assert clean("a\033[2Jb\r\nc\x9b") == "a [2Jb  c"
    assert clean_lines("one\n\ttwo\033]0;x\a") == "one\n\ttwo ]0;x "
    assert columns([("a\nb", "c"), ("d", "\033")]) == ["a b  c", "d"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s ago"), (59, "59 s ago"), (90, "2 min ago"), (7000, "117 min ago"), (7300, "2 h ago"), (200_000, "2 d ago"), (-30, "in 30 s")],
)  # fmt: skip
def test_a_time_is_shown_as_how_long_ago_it_was(seconds: float, text: str) -> None:
    at = datetime.now(UTC) - timedelta(seconds=seconds)
    assert ago(at.isoformat()) in (text, text.replace("30", "29"))
    assert ago(None) == ago("nonsense") == "-"


def test_plural_adds_no_ending_for_one() -> None:
    assert [plural(count, word) for count, word in ((1, "delivery"), (2, "delivery"), (0, "warning"))] == [
        "1 delivery",
        "2 deliveries",
        "0 warnings",
    ]
