"""The unit in a machine of its own, a Debian that systemd boots: installed with the commands of docs/deployment.md."""

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import psutil  # type: ignore[import-untyped]
import pytest

from tests.deploy.asking import accepts_only_its_tokens, asking, carries_a_job, has_done, read_token, shows_the_console
from tests.deploy.containers import debian, pip_settings
from tests.deploy.places import ROOT
from tests.e2e.server import eventually, free_port

# Where cgroups of version 1 are mounted too, newer versions of systemd refuse to start: the machine gets version 2 alone.
BOOT = 'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec systemd-nspawn "$@"'
INSIDE = ("--mount", "--uts", "--ipc", "--net", "--pid")


class Machine:
    """A booted Debian with the network of this one, and the repository in /source."""

    def __init__(self, root: Path) -> None:
        self.root = root
        binds = [f"--bind-ro={path}" for path in pip_settings()]
        options = ("--quiet", "--register=no", "--keep-unit", "--console=pipe", f"--bind-ro={ROOT}:/source")
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", BOOT, "sh", *options, *binds, "-D", root, "--boot"],
            stdin=subprocess.DEVNULL,
        )

    async def booted(self) -> None:
        await eventually(
            lambda: "running" in self._said("systemctl is-system-running"), 120, "systemd has started everything"
        )

    def __call__(self, command: str, ok: bool = True) -> str:
        assert self._process.poll() is None, "the machine has ended"
        [init] = psutil.Process(self._process.pid).children()
        environ = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
        done = subprocess.run(
            ["nsenter", "--target", str(init.pid), *INSIDE, "sh", "-c", f"cd /source && {command}"],
            env=environ | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
            stdout=PIPE, stderr=STDOUT, text=True, errors="replace",
        )  # fmt: skip
        assert done.returncode == 0 or not ok, f"{command}\n{done.stdout[-5000:]}"
        return done.stdout

    def _said(self, command: str) -> str:
        """Return its output, or nothing while the machine is not so far."""
        try:
            return self(command, ok=False)
        except ValueError:
            return ""

    def shows(self, name: str) -> str:
        return self(f"systemctl show --value --property {name} chargehand").strip()

    def halt(self) -> None:
        self._process.terminate()  # shuts it down in good order
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    packages = ("python3", "python3-venv", "ca-certificates", "systemd", "systemd-sysv", "dbus")
    with tempfile.TemporaryDirectory(prefix="machine-") as folder:
        root = Path(folder) / "root"
        root.mkdir()
        _unpack(debian(*packages), root)
        running = Machine(root)
        try:
            await running.booted()
            yield running
        finally:
            running.halt()


def _unpack(tar: Path, root: Path) -> None:
    subprocess.run(["tar", "-C", root, "--exclude=./dev/*", "-xf", tar], check=True)


def _commands() -> list[str]:
    """Return the commands of the document, without the last, which the test does itself."""
    section = (ROOT / "docs/deployment.md").read_text().split("\n## systemd\n")[1]
    block = section.split("```\n")[1]
    *commands, last = block.replace("sudo ", "").splitlines()
    assert last.startswith("curl ")
    return commands


@pytest.mark.deploy("mmdebstrap", "nsenter", "systemd-nspawn", "unshare")
@pytest.mark.timeout(3600)
async def test_the_unit_is_installed_starts_comes_back_after_a_kill_and_stops(machine: Machine) -> None:
    port = free_port()
    secrets, settings = machine.root / "etc/chargehand", machine.root / "etc/chargehand/chargehand.toml"
    for command in _commands():
        machine(command)
        if "make-secrets" in command:
            with settings.open("a") as file:
                file.write(f'\n[server]\nlisten = "127.0.0.1:{port}"\n')

    def said() -> str:
        return machine("journalctl --no-pager --unit chargehand", ok=False)

    async with asking(f"http://127.0.0.1:{port}", said) as http:
        token = read_token(secrets, "operator")
        await accepts_only_its_tokens(http, secrets)
        await shows_the_console(http)
        job = await carries_a_job(http, token)
        assert machine("systemctl is-active chargehand").strip() == "active"
        assert int(machine(f"stat -c %u /proc/{machine.shows('MainPID')}")) >= 60_000, "a dynamic user"

        machine("systemctl kill --kill-whom main --signal KILL chargehand")
        await eventually(lambda: machine.shows("NRestarts") == "1", 60, "systemd has started it anew")
        await eventually(lambda: has_done(http, job, token), 60, "it is back, and its jobs are")

    machine("systemctl stop chargehand")
    assert (machine.shows("Result"), machine.shows("ExecMainStatus")) == ("success", "0"), said()
    assert token not in said()

    with settings.open("a") as file:
        file.write("no_such_setting = 1\n")
    machine("systemctl start chargehand", ok=False)
    assert (machine.shows("ActiveState"), machine.shows("ExecMainStatus")) == ("failed", "2"), said()
    assert "no_such_setting" in said()
