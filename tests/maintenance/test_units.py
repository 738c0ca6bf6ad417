"""The units under a real systemd in a container: the agent is real, only the steps are stand-ins."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.packages import missing

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "maintenance" / "units"
LINUX = ["partition", "image-linux", "bootloader-linux", "config-drive"]
WINDOWS = ["partition", "image-windows", "bootloader-windows"]
STEPS = [*LINUX, *WINDOWS[1:], "firmware"]
BOOT_SECONDS = 90

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

# Logs its name, and fails if configured to.
STEP = """\
#!/bin/sh
echo "$1" >> /out/log
[ "$(cat /out/fails)" != "$1" ] || exit 7
"""
DISPATCHER = """\
#!/bin/sh
echo dispatcher >> /out/log
mkdir -p /run/provision && cp /out/report.json /run/provision/
[ "$(cat /out/fails)" != dispatcher ] || exit 18
exec systemctl --no-block start "$(cat /out/target)"
"""
# Done when no unit is starting and no report waits for a retry.
END = """\
#!/bin/sh
sleep 1
while [ -n "$(systemctl list-jobs --no-legend | grep -v ' the-end.service ')" ] || systemctl list-units --no-legend --state=activating | grep -q provision
do sleep 0.2; done
systemctl show --property=Id,NRestarts,Result,ActiveState 'provision-*' > /out/units
systemctl --force poweroff
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the packages of the maintenance system as a tree, with the units and the agent."""
    if lacking := missing(["systemd-nspawn"]):
        pytest.fail(lacking, pytrace=False)
    found = subprocess.run(
        [sys.executable, "-c", "from maintenance.build import rootfs; print(rootfs.key())"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    packages = ROOT / "build" / "cache" / f"rootfs-{found.stdout.strip()}.tar"
    if not packages.exists():
        pytest.fail("the packages are not there: make maintenance-iso")
    folder = tmp_path_factory.mktemp("root")
    excluded = ("./kernel", "./usr/share/perl", "./usr/lib/x86_64-linux-gnu/perl", "./usr/lib/udev", "./dev")
    subprocess.run(["tar", "-xf", packages, "-C", folder, *(f"--exclude={path}" for path in excluded)], check=True)
    (folder / "dev").mkdir()
    system = folder / "usr/lib/systemd/system"
    for file in UNITS.iterdir():
        shutil.copy(file, system)
    shutil.copytree(ROOT / "maintenance/agent/provision", folder / "usr/lib/python3/dist-packages/provision")
    for name, text in {"step": STEP, "dispatcher": DISPATCHER, "the-end": END}.items():
        (folder / "usr/local/bin" / name).write_text(text)
        (folder / "usr/local/bin" / name).chmod(0o755)
    own = folder / "etc/systemd/system"
    for step in STEPS:
        _drop_in(own, f"{step}.service", f"ExecStart=\nExecStart=/usr/local/bin/step {step}")
    _drop_in(own, "provision-dispatcher.service", "ExecStart=\nExecStart=/usr/local/bin/dispatcher")
    _drop_in(own, "provision-heartbeat.service", "ExecStart=\nExecStart=/usr/bin/sleep infinity")
    for unit in ("provision-success.service", "provision-failed@.service"):
        _drop_in(own, unit, "RestartSec=100ms")
    (own / "the-end.service").write_text(
        "[Unit]\nAfter=provision-dispatcher.service\n[Service]\nExecStart=/usr/local/bin/the-end\n"
    )
    wants = own / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "the-end.service").symlink_to("/etc/systemd/system/the-end.service")
    (wants / "provision-dispatcher.service").symlink_to("/usr/lib/systemd/system/provision-dispatcher.service")
    for unit in ("systemd-firstboot.service", "systemd-networkd.service", "systemd-resolved.service", "getty.target"):
        (own / unit).unlink(missing_ok=True)
        (own / unit).symlink_to("/dev/null")
    (own / "default.target").unlink(missing_ok=True)
    (own / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    (folder / "etc/machine-id").write_text("")
    return folder


def _drop_in(own: Path, unit: str, text: str) -> None:
    (own / f"{unit}.d").mkdir(parents=True, exist_ok=True)
    (own / f"{unit}.d" / "test.conf").write_text(f"[Service]\n{text}\n")


class Heard:
    """The receiver of reports. It answers 503 a given number of times first."""

    def __init__(self, refusals: int = 0) -> None:
        self.attempts: list[dict[str, Any]] = []
        heard = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                heard.attempts.append(json.loads(body))
                self.send_response(503 if len(heard.attempts) <= refusals else 200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Boot:
    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self.out = folder / "out"
        self.out.mkdir()
        self.heard = Heard()

    def run(self, target: str = "install-linux.target", fails: str = "", refusals: int = 0) -> None:
        self.heard.close()
        self.heard = Heard(refusals)
        url = self.heard.url
        report = {"job_id": "J", "server_serial": "S", "system_uuid": None, "status_url": url, "progress_url": url}
        report |= {"registry_url": url, "token": "a-secret-token"}
        for name, text in {"report.json": json.dumps(report), "fails": fails, "target": target, "log": ""}.items():
            (self.out / name).write_text(text)
        options = "-q -b --volatile=overlay --register=no --keep-unit --console=pipe"
        command = ["systemd-nspawn", *options.split(), "-D", str(self._root)]
        try:
            done = subprocess.run(
                [*command, f"--bind={self.out}:/out"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=BOOT_SECONDS,
            )
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"it did not end: {self.log} {(late.stdout or b'').decode()[-3000:]}") from None
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        assert "a-secret-token" not in done.stdout.decode(errors="replace")

    @property
    def log(self) -> list[str]:
        return (self.out / "log").read_text().split()

    def unit(self, name: str) -> dict[str, str]:
        for block in (self.out / "units").read_text().split("\n\n"):
            said = dict(line.split("=", 1) for line in block.splitlines())
            if said.get("Id") == name:
                return said
        return {}


@pytest.fixture
def boot(root: Path, tmp_path: Path) -> Iterator[Boot]:
    made = Boot(root, tmp_path)
    yield made
    made.heard.close()


@pytest.mark.parametrize(
    ("target", "steps"),
    [("install-linux.target", LINUX), ("install-windows.target", WINDOWS), ("supermicro-update.target", ["firmware"])],
)
def test_the_steps_run_one_after_the_other_and_success_is_reported_once(
    boot: Boot, target: str, steps: list[str]
) -> None:
    boot.run(target)
    assert boot.log == ["dispatcher", *steps]
    assert [said["status"] for said in boot.heard.attempts] == ["success"]


@pytest.mark.parametrize("step", [*LINUX, *WINDOWS[1:], "firmware"])
def test_the_first_step_that_fails_is_reported_and_no_other(boot: Boot, step: str) -> None:
    chains = {
        "install-linux.target": LINUX,
        "install-windows.target": WINDOWS,
        "supermicro-update.target": ["firmware"],
    }
    target, steps = next((target, steps) for target, steps in chains.items() if step in steps)
    boot.run(target, fails=step)
    assert boot.log == ["dispatcher", *steps[: steps.index(step) + 1]], "nothing runs after it"
    (said,) = boot.heard.attempts
    assert (said["status"], said["failed_step"], said["exit_code"]) == ("failed", f"{step}.service", 7)


def test_a_dispatcher_that_fails_is_reported_with_its_unit(boot: Boot) -> None:
    boot.run(fails="dispatcher")
    assert boot.log == ["dispatcher"]
    (said,) = boot.heard.attempts
    assert (said["failed_step"], said["exit_code"]) == ("provision-dispatcher.service", 18)


@pytest.mark.parametrize("fails", ["", "image-linux"])
def test_a_report_that_is_not_accepted_is_sent_again_as_the_same_delivery(boot: Boot, fails: str) -> None:
    boot.run(fails=fails, refusals=3)
    assert len(boot.heard.attempts) == 4
    assert len({said["delivery_id"] for said in boot.heard.attempts}) == 1
    if not fails:
        assert boot.unit("provision-success.service")["NRestarts"] == "3"


def test_a_report_is_given_up_after_ten_attempts(boot: Boot) -> None:
    boot.run(refusals=1000)
    assert len(boot.heard.attempts) == 10
    assert boot.unit("provision-success.service")["Result"] in ("exit-code", "start-limit-hit")


def test_the_retries_are_ten_seconds_apart() -> None:
    for name in ("provision-success.service", "provision-failed@.service"):
        lines = (UNITS / name).read_text().splitlines()
        assert {"Restart=on-failure", "RestartSec=10s", "StartLimitBurst=10", "StartLimitIntervalSec=10min"} <= set(
            lines
        )


def test_the_firmware_unit_has_no_timeout_and_every_step_has_private_mounts() -> None:
    lines = (UNITS / "firmware.service").read_text().splitlines()
    assert {"TimeoutStartSec=infinity", "TimeoutStopSec=infinity", "KillMode=mixed"} <= set(lines)
    for step in STEPS:
        assert "PrivateMounts=yes" in (UNITS / f"{step}.service").read_text().splitlines(), step


@pytest.mark.root("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(UNITS.iterdir()))], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
