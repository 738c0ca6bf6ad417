"""`chargehand provision server` against a real server and a simulated BMC."""

import re
import termios
from pathlib import Path

import pytest

from tests.api.serving import on_sqlite, until
from tests.commands.provisioning import Told, ended, provision, running
from tests.commands.running import chargehand
from tests.commands.terminal import own_the_terminal, terminal
from tests.provisioning.bmc_habits import CD_AND_USB, ONE_CD, PASSWORD, USER, Habits
from tests.provisioning.lab import SERIAL, Lab, lab

pytestmark = [pytest.mark.xdist_group("machines"), pytest.mark.timeout(120)]


async def add(room: Lab, *words: str) -> Told:
    return await provision(
        room.server.url, "server", "add", SERIAL, "--bmc", room.bmc.url, "--user", USER, "--password-stdin", *words,
        stdin=f"{PASSWORD}\n".encode(),
    )  # fmt: skip


@on_sqlite
async def test_a_server_is_added_shown_listed_probed_and_removed(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        url = room.server.url
        empty = await provision(url, "server", "list")
        assert "server add SERIAL" in empty.good().out

        added = await add(room, "--label", "rack=12", "--probe")
        assert f"{SERIAL} is registered" in added.good().out
        assert "two drives: the maintenance image goes into Cd1, the task medium into Cd2" in added.out
        assert re.search(r"^machine +Contoso Model 1$", added.out, re.MULTILINE)
        assert "the machine is off: a job switches it on" in added.out

        [listed] = (await provision(url, "server", "list", "--json")).good().json
        assert (listed["server_serial"], listed["labels"], listed["has_password"]) == (SERIAL, {"rack": "12"}, True)
        shown = (await provision(url, "server", "show", SERIAL)).good().out
        assert re.search(r"^user +operator, with a password$", shown, re.MULTILINE)
        assert re.search(r"^labels +rack=12$", shown, re.MULTILINE)

        kept = await provision(url, "server", "add", SERIAL, "--bmc", room.bmc.url, "--user", USER, "--keep-password")
        assert kept.good().out == f"{SERIAL} is as it was\n"
        assert (await provision(url, "server", "probe", SERIAL, "--json")).good().json["ok"]

        refused = await provision(url, "server", "remove", SERIAL)
        assert (refused.code, refused.err) == (
            2,
            "chargehand: standard input is no terminal, so nobody can confirm this: add --yes\n",
        )
        assert (await provision(url, "server", "remove", SERIAL, "--yes")).good().out == f"{SERIAL} is removed.\n"
        gone = await provision(url, "server", "show", SERIAL)
        assert gone.code == 2
        assert (
            gone.err
            == f"chargehand: there is no server {SERIAL}; register it: chargehand provision server add {SERIAL} --bmc URL\n"
        )
        for each in (added, kept, refused, gone):
            assert PASSWORD not in each.out + each.err


@on_sqlite
@pytest.mark.parametrize(
    ("habits", "meaning"),
    [
        (Habits(slots=ONE_CD), "one CD drive: both media will be in one image, in Cd1"),
        (Habits(slots=CD_AND_USB), "the task medium into RemovableDisk, a USB drive"),
    ],
    ids=["one-cd", "cd-and-usb"],
)
async def test_a_probe_says_what_the_drives_of_a_bmc_mean_for_a_job(
    store_url: str, tmp_path: Path, habits: Habits, meaning: str
) -> None:
    async with lab(store_url, tmp_path, habits) as room:
        await room.register()
        assert meaning in (await provision(room.server.url, "server", "probe", SERIAL)).good().out


@on_sqlite
async def test_a_bmc_that_refuses_the_password_ends_with_exit_code_1(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register(bmc_password="another than it has")
        told = await provision(room.server.url, "server", "probe", SERIAL)
        assert told.code == 1
        assert ", refused: wrong user or password: " in told.out
        assert f"to change them: chargehand provision server add {SERIAL} --user NAME" in told.out
        assert "another than it has" not in told.out + told.err
        assert re.search(
            rf"^{SERIAL} .* refused: wrong user or password ",
            (await provision(room.server.url, "server", "list")).out,
            re.MULTILINE,
        )

        await room.register(bmc_address="http://127.0.0.1:9")
        told = await provision(room.server.url, "server", "probe", SERIAL)
        assert ", no connection: " in told.good(1).out
        assert re.search(
            rf"^{SERIAL} .* no connection ", (await provision(room.server.url, "server", "list")).out, re.MULTILINE
        )


@on_sqlite
@pytest.mark.parametrize(
    ("habits", "advice"),
    [
        (Habits(serial=None), "add --uuid 11111111-2222-3333-4444-555555555555, which the BMC shows"),
        (Habits(serial="SN-2"), "is this the right BMC?"),
        (
            Habits(serial=None, uuid=None),
            f"if it is the right one: chargehand provision server add {SERIAL} --unidentified",
        ),
    ],
    ids=["no-serial", "other-serial", "neither"],
)
async def test_a_bmc_of_another_machine_is_reported_with_advice(
    store_url: str, tmp_path: Path, habits: Habits, advice: str
) -> None:
    async with lab(store_url, tmp_path, habits) as room:
        await room.register()
        told = await provision(room.server.url, "server", "probe", SERIAL)
        assert ", other machine: " in told.good(1).out
        assert advice in told.out


@on_sqlite
async def test_changing_a_server_keeps_what_is_not_given(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        url = room.server.url

        async def change(*words: str, code: int = 0) -> str:
            told = (await provision(url, "server", "add", SERIAL, *words)).good(code)
            return told.out + told.err

        assert f"{SERIAL} is not registered yet" in await change("--keep-password", "--bmc", room.bmc.url, code=2)
        assert "--bmc URL" in await change("--label", "rack=12", code=2)
        (await add(room, "--label", "rack=12", "--label", "row=3", "--vendor", "dell", "--tls", "insecure")).good()
        before = (await provision(url, "server", "show", SERIAL, "--json")).good().json
        fingerprint = ":".join(["AB"] * 32)
        told = await change(
            "--tls", f"sha256:{fingerprint}", "--label", "rack=", "--label", "shelf=1", "--unidentified"
        )
        assert (
            told == f"{SERIAL} is changed: tls sha256:{'ab' * 32}, unidentified yes, label rack none, label shelf 1\n"
        )
        after = (await provision(url, "server", "show", SERIAL, "--json")).good().json
        changed = {"tls", "labels", "unidentified", "updated_at"}
        assert {name: value for name, value in after.items() if name not in changed} == {
            name: value for name, value in before.items() if name not in changed
        }
        assert after["labels"] == {"row": "3", "shelf": "1"}
        told = await change("--vendor", "", "--identified")
        assert told == f"{SERIAL} is changed: vendor none, unidentified no\n"
        for what, *words in (
            ("the BMC's address", "--bmc", "https://10.0.0.6"),
            ("the BMC's user", "--user", "other", "--keep-password"),
            ("how the BMC's certificate is checked", "--tls", "verify"),
        ):
            assert f"{what} changes: the password of " in await change(*words, code=2)
        told = (await add(room, "--tls", "verify")).good().out
        assert told == f"{SERIAL} is changed: tls verify, password\n"
        assert (await provision(url, "server", "probe", SERIAL, "--json")).good().json["ok"]


async def test_a_password_comes_from_stdin_or_the_environment_and_never_from_an_argument(tmp_path: Path) -> None:
    """No server runs: these refusals come before any call."""
    url = "http://127.0.0.1:9"
    words = ("server", "add", SERIAL, "--bmc", "https://10.0.0.5", "--user", USER)
    assert "CHARGEHAND_BMC_PASSWORD" in (await provision(url, *words)).good(2).err
    asked = await chargehand(url, "provision", *words, "--password", PASSWORD)
    assert "no such option" in asked.good(2).err
    assert "standard input has no line" in (await provision(url, *words, "--password-stdin")).good(2).err
    told = await provision(url, *words, environ={"CHARGEHAND_BMC_PASSWORD": PASSWORD})
    [line] = told.good(2).err.splitlines()
    assert line.startswith(f"chargehand: {url} cannot be reached")
    assert "chargehand serve" in line


@on_sqlite
async def test_the_password_is_asked_for_on_a_terminal_and_not_shown(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        words = ("server", "add", SERIAL, "--bmc", room.bmc.url, "--user", USER, "--probe")
        async with (
            terminal() as (pipes, seen, write),
            running(room.server.url, *words, preexec_fn=own_the_terminal, **pipes) as adding,
        ):
            # Type only when the echo is off: the prompt discards what was typed before.
            await until(lambda: not termios.tcgetattr(pipes["stdin"])[3] & termios.ECHO, 60)
            write(f"{PASSWORD}\n".encode())
            told = await ended(adding)
        shown = b"".join(seen).decode()
        assert told.code == 0, shown
        assert "The password of operator at the BMC" in shown
        assert f"asking the BMC of {SERIAL} …" in shown
        assert "two drives" in shown
        assert PASSWORD not in shown


async def test_ctrl_c_at_the_password_prompt_exits_with_130_and_nothing_is_done() -> None:
    words = ("server", "add", SERIAL, "--bmc", "https://10.0.0.5", "--user", USER)
    async with (
        terminal() as (pipes, seen, write),
        running("http://127.0.0.1:9", *words, preexec_fn=own_the_terminal, **pipes) as adding,
    ):
        await until(lambda: not termios.tcgetattr(pipes["stdin"])[3] & termios.ECHO, 60)
        write(b"\x03")
        told = await ended(adding)
    assert told.code == 130, seen
    assert "Nothing was done." in b"".join(seen).decode()
