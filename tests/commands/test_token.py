"""`chargehand token --user` reads the password from a terminal or a pipe, and does not show it."""

import functools
import json
import termios
from asyncio.subprocess import PIPE

import pytest

from chargehand.http.credentials import PasswordHash
from tests.api.serving import until
from tests.commands.running import chargehand, ended, invoked, running
from tests.commands.terminal import own_the_terminal, terminal

pytestmark = pytest.mark.xdist_group("processes")


def shown(seen: list[bytes], text: bytes) -> bool:
    return text in b"".join(seen)


async def test_the_password_is_asked_for_twice_and_stdout_has_only_json() -> None:
    async with terminal() as (pipes, seen, write):
        pipes |= {"stdout": PIPE, "preexec_fn": own_the_terminal}
        async with running("", "token", "--user", "--json", **pipes) as process:
            for question in (b"Password", b"Repeat"):
                await until(functools.partial(shown, seen, question), 30)
                # Type only when the echo is off: the prompt discards what was typed before.
                await until(lambda: not termios.tcgetattr(pipes["stdin"])[3] & termios.ECHO, 30)
                write(b"open sesame\n")
            told = (await ended(process)).good()
    assert PasswordHash.parse(json.loads(told.out)["password_hash"]).matches("open sesame")
    assert b"open sesame" not in b"".join(seen)


async def test_a_password_line_may_end_with_crlf() -> None:
    told = (await chargehand("", "token", "--user", "--json", stdin=b"open sesame\r\n")).good()
    assert PasswordHash.parse(told.json["password_hash"]).matches("open sesame")


@pytest.mark.parametrize("stdin", [b"", b"\n", b"\r\n"])
async def test_an_empty_password_is_refused(stdin: bytes) -> None:
    told = (await invoked("", "token", "--user", stdin=stdin)).good(2)
    assert told.err == "chargehand: the password is empty: give it as a line on standard input\n"
