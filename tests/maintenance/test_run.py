"""Running programs, and what is logged of it."""

import os
import time
from pathlib import Path

import pytest

from provision.errors import Exit, Trouble
from provision.journal import HIDDEN, Secrets, say
from provision.plan import WaitFor, command, execute, wait_for
from provision.recipe import quoted
from provision.run import TAIL, CommandFailed, environment, run


def test_a_program_gets_its_arguments_unchanged_and_its_input() -> None:
    assert run(["printf", "%s|", "a b", "$HOME", ";", "*"]).output == "a b|$HOME|;|*|"
    assert run(["cat"], stdin=b"x" * 300_000).output == "x" * 300_000


def test_the_error_of_a_failed_program_has_its_code_and_last_lines() -> None:
    with pytest.raises(CommandFailed, match=r"sh ended with exit code 3: three / four / five") as caught:
        run(["sh", "-c", "printf 'one\ntwo\nthree\nfour\nfive\n' >&2; exit 3"])
    assert caught.value.code == Exit.COMMAND
    with pytest.raises(CommandFailed, match="was ended by signal 9"):
        run(["sh", "-c", "kill -9 $$"])
    with pytest.raises(CommandFailed, match="no-such-program cannot be started"):
        run(["no-such-program"])
    assert run(["false"], check=False).code == 1


def test_a_quiet_program_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    run(["true"], quiet=True)
    assert capfd.readouterr().err == ""
    run(["true"])
    assert capfd.readouterr().err == "$ true\n"


def test_without_a_timeout_a_program_is_waited_for() -> None:
    assert run(["sh", "-c", "sleep 0.1; echo done"], timeout=None).output == "done\n"


def test_only_the_end_of_a_long_output_is_kept() -> None:
    outcome = run(["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x >&2"])
    assert len(outcome.tail) == TAIL


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"did not end within 0.2 seconds"):
        run(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; wait"], timeout=0.2)
    assert time.monotonic() - began < 10
    child = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{child}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_a_recipes_variables_reach_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_PASSWORD", "tiddlywinks")
    monkeypatch.setenv("LD_PRELOAD", "")
    assert set(environment()) == {"PATH", "LC_ALL", "HOME", "TERM"}
    assert "tiddlywinks" not in run(["env"]).output


def test_a_plan_ends_at_its_first_failure_unless_the_action_may_fail(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed):
        execute(
            [
                command("false", may_fail=True),
                command("touch", f"{tmp_path}/a"),
                command("false"),
                command("touch", f"{tmp_path}/b"),
            ]
        )
    assert os.listdir(tmp_path) == ["a"]


def test_a_device_that_does_not_appear_is_an_error(tmp_path: Path) -> None:
    execute([WaitFor(str(tmp_path))])
    with pytest.raises(Trouble, match="did not appear"):
        wait_for(str(tmp_path / "none"), 0.1)


def test_a_log_message_is_always_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nerror: forged\x1b[2J\r")
    assert capsys.readouterr().err == "a error: forged [2J \n"


def test_secrets_are_hidden_as_words_and_as_lines() -> None:
    secrets = Secrets(["token-1", "token-12", "short"], ["  password: x1", "", "ab"])
    text = "with token-12 and token-1, short\npassword: x1\n\nab\nmy password: x1"
    assert secrets.hide(text) == f"with {HIDDEN} and {HIDDEN}, short\n{HIDDEN}\n\nab\nmy password: x1"


def test_a_value_in_an_environment_file_cannot_become_a_second_variable() -> None:
    assert quoted('a"\nPATH=/evil') == r'"a\"PATH=/evil"'
