"""A BMC that we did not write, as a process: sushy-emulator of sushy-tools with its fake driver, on a free port.

It really downloads inserted images. It has no sessions, identifies its systems only by UUID, and ignores "Once".
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt

START_SECONDS = 30.0
STOP_SECONDS = 10.0

TWO_CDS = {
    "Cd": {"Name": "Virtual CD", "MediaTypes": ["CD", "DVD"]},
    "Cd2": {"Name": "Second virtual CD", "MediaTypes": ["CD", "DVD"]},
}
USER, PASSWORD = "admin", "pa55-of-sushy"


@dataclass(frozen=True)
class Fake:
    """A machine of the emulator."""

    uuid: str
    name: str
    power: str = "Off"


FIRST = Fake("aaaaaaaa-0000-4000-8000-000000000001", "first")
SECOND = Fake("aaaaaaaa-0000-4000-8000-000000000002", "second", "On")


@dataclass(frozen=True)
class Emulator:
    url: str
    process: "subprocess.Popen[bytes]"
    log: Path


@contextmanager
def emulator(
    folder: Path,
    systems: Sequence[Fake] = (FIRST, SECOND),
    devices: Mapping[str, Mapping[str, object]] | None = TWO_CDS,
    *,
    delay_seconds: int = 0,
    notify_url: str = "",
    auth: bool = False,
    certificate: Path | None = None,
) -> Iterator[Emulator]:
    """`notify_url` gets a PUT with the whole system at each change, so that a test can act as the machine."""
    for name in ("state", "tmp"):
        (folder / name).mkdir()
    settings: dict[str, object] = {
        "SUSHY_EMULATOR_LISTEN_IP": "127.0.0.1",
        "SUSHY_EMULATOR_LISTEN_PORT": 0,
        "SUSHY_EMULATOR_FAKE_DRIVER": True,
        "SUSHY_EMULATOR_STATE_DIR": str(folder / "state"),
        "SUSHY_EMULATOR_FAKE_SYSTEMS": [
            {
                "uuid": each.uuid,
                "name": each.name,
                "power_state": each.power,
                "external_notifier": bool(notify_url),
                "nics": [{"mac": f"00:5c:52:31:3a:{at:02x}", "ip": f"192.0.2.{at + 1}"}],
            }
            for at, each in enumerate(systems)
        ],
    }
    if notify_url:
        settings["EXTERNAL_NOTIFICATION_URL"] = notify_url
    if devices is not None:
        settings["SUSHY_EMULATOR_VMEDIA_DEVICES"] = {name: dict(device) for name, device in devices.items()}
    if auth:
        users = folder / "users"
        users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
        settings["SUSHY_EMULATOR_AUTH_FILE"] = str(users)
    if certificate is not None:
        settings |= {"SUSHY_EMULATOR_SSL_CERT": str(certificate), "SUSHY_EMULATOR_SSL_KEY": str(certificate)}
    config, log = folder / "sushy.conf", folder / "sushy.log"
    config.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    environment = {**os.environ, "SUSHY_DELAY_SECONDS": str(delay_seconds), "TMPDIR": str(folder / "tmp")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.provisioning.sushy_emulator", "--config", str(config)],
            stdout=output,
            stderr=output,
            env=environment,
        )
    try:
        yield Emulator(_listening(process, log), process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def _listening(process: "subprocess.Popen[bytes]", log: Path) -> str:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"Running on (https?://127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise RuntimeError(f"sushy-emulator did not start: {log.read_text()[-2000:]}")
