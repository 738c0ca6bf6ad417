import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from chargehand.observability.logs import configure_logs, get_logger, scrub

log = get_logger("chargehand.test")  # made before any configuration, as modules do


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Secret:
    def __init__(self, value: str) -> None:
        self.value = value

    def reveal(self) -> str:
        return self.value

    def __str__(self) -> str:
        return self.value


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    configure_logs("info", "auto", stream)
    return stream


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_has_time_level_event_and_the_bound_fields(out: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(job_id="job_1"):
        log.bind(queue="default").info("job claimed", attempt=2)
    (line,) = lines(out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("ts"))
    assert line == {
        "level": "info",
        "event": "job claimed",
        "logger": "chargehand.test",
        "job_id": "job_1",
        "queue": "default",
        "attempt": 2,
    }
    assert out.getvalue().startswith('{"ts": ')


def test_a_terminal_gets_lines_with_colours() -> None:
    terminal = Terminal()
    configure_logs("info", "auto", terminal)
    log.warning("disk nearly full", free_bytes=17)
    assert "\x1b[" in terminal.getvalue()
    assert "disk nearly full" in terminal.getvalue()


def test_the_format_can_be_forced() -> None:
    file, terminal = io.StringIO(), Terminal()
    configure_logs("info", "human", file)
    log.info("hello", job_id="job_1")
    configure_logs("info", "json", terminal)
    log.info("hello")
    assert "hello" in file.getvalue()
    assert "job_id=job_1" in file.getvalue()
    assert "\x1b[" not in file.getvalue()
    assert json.loads(terminal.getvalue())["event"] == "hello"


def test_the_level_holds_for_us_and_for_libraries(out: io.StringIO) -> None:
    configure_logs("warning", "json", out)
    log.info("quiet")
    logging.getLogger("asyncio").info("quiet")
    log.warning("loud")
    logging.getLogger("aiohttp.client").warning("loud %s", "too")
    assert [(line["logger"], line["event"]) for line in lines(out)] == [
        ("chargehand.test", "loud"),
        ("aiohttp.client", "loud too"),
    ]


def test_libraries_go_through_the_same_processors(out: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(job_id="job_1"):
        logging.getLogger("asyncio").error("cannot reach %s", "https://user:hunter2@there/path?token=hunter2")
    (line,) = lines(out)
    assert line["level"] == "error"
    assert line["job_id"] == "job_1"
    assert line["event"] == "cannot reach https://there/path"
    assert line["ts"].endswith("Z")


def test_configuring_twice_does_not_log_twice(out: io.StringIO) -> None:
    configure_logs("info", "json", out)
    logging.getLogger("asyncio").error("once")
    assert len(lines(out)) == 1


@pytest.mark.parametrize("format", ["json", "human"])
def test_no_secret_is_ever_written(format: Any) -> None:
    stream = io.StringIO()
    configure_logs("info", format, stream)
    secret = "hunter2"
    log.info(
        "request",
        authorization=secret,
        db_password=secret,
        webhookSecret=secret,
        lease_token=secret,
        tokens=[secret],
        api_key=secret,
        keys=[secret],
        headers={"Cookie": secret, "Webhook-Signature": secret, "X-Deep": [{"private_key": secret}]},
        wrapped=Secret(secret),
        nested=[Secret(secret)],
        raw=secret.encode(),
        url=f"https://user:{secret}@there/path?key={secret}#{secret}",
        odd=f"https://user:{secret}@{secret}@there/path",
        dsn=f"postgresql://user:{secret}/{secret}@there/db?password={secret}",
        text=f"cannot connect to 'postgres://user:{secret}@there/db'",
    )
    try:
        raise ValueError(f"no answer from https://user:{secret}@there/?token={secret}")
    except ValueError as error:
        log.exception("failed", cause=error)
    assert secret not in stream.getvalue()
    assert "ValueError" in stream.getvalue()


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("idempotency_key", "order-17", "order-17"),
        ("public_key", "whpk_x", "whpk_x"),
        ("prompt_tokens", 12, 12),
        ("token", None, None),
        ("signature_valid", True, True),
        ("password", 1234, "***"),
        ("url", "https://there:8443/path", "https://there:8443/path"),
        ("url", "HTTPS://me@there?q", "HTTPS://there"),
        ("url", "https://there/@name", "https://there/@name"),
        ("dsn", "postgresql:///db?host=/run", "postgresql:///db"),
        ("body", b"abc", "<3 bytes>"),
        ("ratio", float("nan"), "nan"),
        ("state", {1: {"a"}}, {"1": ["a"]}),
        ("thing", Unprintable(), "<Unprintable>"),
    ],
)
def test_a_value_is_shown_as_plain_data(key: str, value: Any, shown: Any) -> None:
    assert scrub(key, value) == shown


def test_a_recursive_structure_is_cut_off(out: io.StringIO) -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    log.info("loop", endless=endless)
    assert len(lines(out)) == 1


def test_an_exception_is_one_structured_field_with_its_traceback(out: io.StringIO) -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            local = "not to be shown"
            raise RuntimeError("outer") from error
    except RuntimeError:
        log.exception("failed", job_id="job_1")
        logging.getLogger("asyncio").exception("failed too")
    for line in lines(out):
        outer, inner = line["exception"]
        assert (outer["exc_type"], outer["exc_value"]) == ("RuntimeError", "outer")
        assert inner["exc_type"] == "KeyError"
        assert outer["frames"][0]["name"] == "test_an_exception_is_one_structured_field_with_its_traceback"
        assert "exc_info" not in line
    assert local not in out.getvalue()


def test_a_log_stream_that_cannot_be_written_raises_nothing(out: io.StringIO) -> None:
    out.close()
    log.error("nobody hears this")
    logging.getLogger("asyncio").error("nor this")
