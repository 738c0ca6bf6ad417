from chargehand.webhooks.lanes import MAX_COOL_DOWN, Lane

THRESHOLD, PAUSE = 5, 30.0


def fail(lane: Lane, now: float, times: int = 1, spread: float = 0.0) -> None:
    for _ in range(times):
        lane.failed(now, THRESHOLD, PAUSE, spread)


def test_a_lane_is_left_alone_after_failures_in_a_row() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=THRESHOLD - 1)
    assert not lane.is_open(100)
    fail(lane, now=100)
    assert lane.is_open(100)
    assert lane.closed_until == 130
    assert not lane.is_open(130)


def test_a_success_in_between_starts_the_count_again() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=THRESHOLD - 1)
    lane.succeeded()
    fail(lane, now=100, times=THRESHOLD - 1)
    assert not lane.is_open(100)


def test_after_its_pause_a_lane_is_on_probation_until_a_delivery_succeeds() -> None:
    lane = Lane("ep")
    assert not lane.on_probation()
    fail(lane, now=100, times=THRESHOLD)
    assert lane.on_probation()
    lane.succeeded()
    assert not lane.on_probation()
    assert not lane.is_open(100)


def test_each_probe_that_fails_doubles_the_pause_up_to_a_bound() -> None:
    lane, now = Lane("ep"), 100.0
    fail(lane, now, THRESHOLD)
    pauses = [lane.closed_until - now]
    for _ in range(6):
        now = lane.closed_until
        fail(lane, now)
        pauses.append(lane.closed_until - now)
    assert pauses == [PAUSE * times for times in (1, 2, 4, 8, 16, 16, 16)]
    assert max(pauses) == PAUSE * MAX_COOL_DOWN


def test_pauses_are_spread_so_that_probes_do_not_come_together() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=THRESHOLD, spread=1.0)
    assert lane.closed_until == 100 + PAUSE * 1.25


def test_failures_of_what_was_in_flight_when_the_breaker_opened_do_not_lengthen_its_pause() -> None:
    lane = Lane("ep")
    fail(lane, now=100, times=16)
    assert lane.closed_until == 100 + PAUSE


def test_a_lane_is_forgotten_only_when_there_is_nothing_to_remember() -> None:
    lane = Lane("ep")
    assert lane.idle(100)
    fail(lane, now=100)
    assert not lane.idle(100)
    lane.succeeded()
    lane.closed_until = 130  # as Retry-After does
    assert not lane.idle(100)
    assert lane.idle(130)
    lane.wanted = True
    assert not lane.idle(130)
