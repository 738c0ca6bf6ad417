"""The command line as a process: its output and its exit codes."""

import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import requests

from chargehand import __version__
from chargehand.config import load_config
from chargehand.http.credentials import PasswordHash, hash_token
from chargehand.webhooks.signature import standard_secret

COMMAND = str(Path(sys.executable).with_name("chargehand"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("CHARGEHAND_")}
BEYOND_LOOPBACK = "0.0.0.0:0"


def run(*arguments: str, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={**ENVIRON, **settings},
        input="open sesame\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[str]:
    """Start a server and yield the URL that it prints."""
    command = [COMMAND, "serve", "--listen", "127.0.0.1:0", "--data", str(folder), *arguments]
    with subprocess.Popen(command, cwd=folder, env=ENVIRON, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            while not (where := re.search(r"API +(http://\S+)/docs", said)):
                line = process.stderr.readline()
                assert line, f"ended with {process.wait()}: {said}"
                said += line
            yield where[1]
        finally:
            process.terminate()
            assert process.wait(20) == 0


def one_line(failed: subprocess.CompletedProcess[str]) -> str:
    """Assert that a start was refused with one line on stderr, no traceback and exit code 2; return the line."""
    assert (failed.returncode, failed.stdout) == (2, "")
    [line] = failed.stderr.splitlines()
    assert line.startswith("chargehand: ")
    return line


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_version_is_printed() -> None:
    told = run("--version")
    assert (told.returncode, told.stdout, told.stderr) == (0, f"chargehand {__version__}\n", "")


def test_help_lists_the_commands() -> None:
    told = run("--help")
    assert told.returncode == 0
    assert {command for command in ("serve", "token") if command not in told.stdout} == set()


def test_an_unknown_command_or_option_is_refused() -> None:
    for arguments in (["dance"], ["serve", "--dance"]):
        assert run(*arguments).returncode == 2


# ── token ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def made(*arguments: str) -> dict[str, str]:
    told = run("token", "--json", *arguments)
    assert (told.returncode, told.stderr) == (0, "")
    return msgspec.json.decode(told.stdout, type=dict[str, str])


def test_a_token_is_shown_once_and_its_hash_is_ready_for_the_configuration() -> None:
    told = run("token", "--name", "ci", "--tenant", "acme", "--scope", "jobs:read", "--scope", "work")
    assert told.returncode == 0
    [token] = re.findall(r"ch_\S+", told.stdout)
    config = tomllib.loads(told.stdout[told.stdout.index("[[auth.tokens]]") :])
    expected = {"name": "ci", "hash": hash_token(token), "tenant": "acme", "scopes": ["jobs:read", "work"]}
    assert config == {"auth": {"tokens": [expected]}}


def test_a_token_in_json_comes_with_a_hash_that_verifies() -> None:
    first, second = made(), made()
    assert first["hash"] == hash_token(first["token"])
    assert first["token"] != second["token"]


@pytest.mark.parametrize("arguments", [[], ["--user"], ["--webhook-secret"]])
def test_the_printed_configuration_can_be_loaded(tmp_path: Path, arguments: list[str]) -> None:
    file = tmp_path / "made.toml"
    file.write_text(made(*arguments, "--name", 'O"Brien \\ sons')["config"])
    load_config(file, environ={})


def test_the_password_of_a_user_is_read_and_hashed() -> None:
    user = made("--user", "--name", "operator")
    assert user["user"] == "operator"
    assert PasswordHash.parse(user["password_hash"]).matches("open sesame")


def test_a_webhook_secret_is_one_that_libraries_accept() -> None:
    secret = made("--webhook-secret")["webhook_secret"]
    assert standard_secret(secret) == secret


def test_a_token_for_an_invalid_tenant_is_refused() -> None:
    refused = run("token", "--tenant", "Not This")
    assert (refused.returncode, refused.stdout) == (2, "")


# ── serve ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_token_opens_the_server_that_knows_its_hash(tmp_path: Path) -> None:
    token = made("--name", "ci")
    (tmp_path / "chargehand.toml").write_text(token["config"])
    with serving(tmp_path, "--config", "chargehand.toml") as url, requests.Session() as session:
        session.trust_env = False  # no proxy
        assert session.get(f"{url}/engine/jobs", timeout=10).status_code == 401
        bearer = {"Authorization": f"Bearer {token['token']}"}
        assert session.get(f"{url}/engine/jobs", headers=bearer, timeout=10).json() == {"jobs": [], "next": None}


def test_with_json_serve_prints_its_url(tmp_path: Path) -> None:
    command = [COMMAND, "serve", "--json", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--no-embedded-model"]
    with subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = msgspec.json.decode(process.stdout.readline())
        assert (told["type"], told["version"], told["pid"]) == ("ready", __version__, process.pid)
        with requests.Session() as session:
            session.trust_env = False
            assert session.get(f"{told['url']}/readyz", timeout=10).status_code == 200
        process.terminate()
        out, log = process.communicate(timeout=20)
    assert out == ""
    assert {"ts", "level", "event"} <= set.intersection(*(set(msgspec.json.decode(line)) for line in log.splitlines()))


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = one_line(run("serve", "--listen", address, "--data", str(tmp_path)))
        assert refused == f"chargehand: {address} is already in use; choose another with --listen"


def test_listening_beyond_loopback_without_auth_is_refused(tmp_path: Path) -> None:
    refused = one_line(run("serve", "--listen", BEYOND_LOOPBACK, "--data", str(tmp_path)))
    assert "auth.tokens" in refused
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_setting_is_named_wherever_it_was_set(tmp_path: Path) -> None:
    file = tmp_path / "chargehand.toml"
    file.write_text("[server]\nlissten = '127.0.0.1:0'\n")
    refused = one_line(run("serve", "--config", str(file), cwd=tmp_path))
    assert "server.lissten is not a setting; did you mean server.listen?" in refused
    refused = one_line(run("serve", cwd=tmp_path, CHARGEHAND_SERVER_LISSTEN="x"))
    assert "CHARGEHAND_SERVER_LISSTEN is not a setting" in refused


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--listen", "nonsense"], "server.listen"),
        (["--store", "mysql://localhost/jobs"], "store.url"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--store", "sqlite:////proc/nowhere/jobs.db"], "/proc/nowhere"),
        (["--store", "postgresql://nobody:hush@127.0.0.1:9/jobs"], "PostgreSQL"),
    ],
)
def test_a_start_that_cannot_succeed_says_why_in_one_line(tmp_path: Path, arguments: list[str], named: str) -> None:
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    refused = one_line(run("serve", *listen, *arguments, cwd=tmp_path))
    assert named in refused
    assert "hush" not in refused
