"""DNS rebinding: the address of a name is checked when it is called. With a hostile name server and the system's resolver."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.webhooks.rebinding import PUBLIC, PUBLIC_6

ROOT = Path(__file__).parents[2]
NAMESPACES = ["--mount", "--net", "--fork"]
LOCAL = ("127.0.0.1", "::1")
pytestmark = pytest.mark.xdist_group("rebinding")  # the script runs once


def unshare() -> list[str]:
    """Return the command that gives a process its own network and /etc/resolv.conf, or skip the test."""
    program = shutil.which("unshare")
    for how in ([] if os.geteuid() == 0 else None, ["--user", "--map-root-user"]):
        if program and how is not None:
            command = [program, *how, *NAMESPACES]
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
    pytest.skip("needs unshare(1) of util-linux, and user namespaces or root: `make test` as root has both")


@pytest.fixture(scope="module")
def scene() -> dict[str, Any]:
    run = subprocess.run(
        [*unshare(), sys.executable, "-m", "tests.webhooks.rebinding"], cwd=ROOT, capture_output=True, timeout=90
    )
    assert run.returncode == 0, run.stderr.decode()[-4000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_a_public_name_is_called(scene: dict[str, Any]) -> None:
    """If this failed, the other tests of this file would prove nothing."""
    for each in scene["found"]["good.test"]:
        assert each["state"] == "delivered", each
        assert each["called"] in ([PUBLIC], [PUBLIC_6])


@pytest.mark.parametrize(("name", "first"), [("rebind.test", PUBLIC), ("rebind6.test", PUBLIC_6)])
def test_a_name_is_refused_from_the_moment_it_resolves_to_loopback(
    scene: dict[str, Any], name: str, first: str
) -> None:
    good, *bad = scene["found"][name]
    assert (good["state"], good["called"]) == ("delivered", [first])
    for each in bad:
        assert (each["state"], each["called"]) == ("dead", [])
        assert "resolves to an address that is loopback or private" in each["reason"]


def test_a_name_is_resolved_once_for_each_connection(scene: dict[str, Any]) -> None:
    """The checked and the called address come from one answer: there is no second query to answer differently."""
    assert {name: count for name, count in scene["asked"].items() if count != len(scene["found"][name])} == {}


def test_a_name_that_changes_its_address_is_called_only_at_the_public_one(scene: dict[str, Any]) -> None:
    flips = scene["found"]["flip.test"]
    assert [(each["state"], each["called"]) for each in flips] == [("delivered", [PUBLIC]), ("dead", [])] * 3


@pytest.mark.parametrize(
    "name",
    [
        *("mixed.test", "turned.test", "mixed6.test", "many.test", "alias.test", "bare-alias.test", "mapped.test"),
        *("nat64.test", "tunnel.test", "zero.test", "zero6.test", "private.test", "metadata.test", "gone.test"),
    ],
)
def test_a_name_with_a_forbidden_address_is_never_called(scene: dict[str, Any], name: str) -> None:
    for each in scene["found"][name]:
        assert (each["state"], each["called"]) == ("dead", []), each
        wanted = "refused by policy" if name not in ("gone.test", "bare-alias.test") else ""
        assert each["reason"].removeprefix("gave up after 1 tries: ").startswith(wanted)
        assert not [address for address in (*LOCAL, "10.0.0.1", PUBLIC) if address in each["reason"]]
