from chargehand.observability.hour import LastHour


def test_a_minute_keeps_its_value_and_stands_where_it_happened() -> None:
    hour: LastHour[list[str]] = LastHour(list)
    hour.at(100).append("a")
    hour.at(103).append("b")
    hour.at(100).append("c")
    assert hour.until(103) == [None] * 56 + [["a", "c"], None, None, ["b"]]


def test_a_new_minute_drops_those_an_hour_before_it() -> None:
    hour: LastHour[list[str]] = LastHour(list)
    for minute in (100, 101, 160):
        hour.at(minute)
    assert list(hour) == [101, 160]
    hour.forget(161)
    assert list(hour) == [160]
    assert hour.until(220) == [None] * 60
