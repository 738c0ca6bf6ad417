"""Read each deployment under deploy/: the server's command, its environment, and the directory of its secrets."""

import configparser
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/chargehand.service"
DOCKERFILE = DEPLOY / "docker/Dockerfile"
COMPOSE = DEPLOY / "compose/compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm/chargehand"


@dataclass(frozen=True)
class Place:
    """How a deployment starts the server. Paths are those of the deployment."""

    command: list[str]  # without the program
    environ: dict[str, str]
    secrets: str  # the directory of its secrets
    data: str  # its writable directory


def make_secrets(folder: Path, *host: str) -> None:
    subprocess.run([DEPLOY / "make-secrets", folder, *host], check=True, capture_output=True)


class Unit(configparser.RawConfigParser):
    """A parser for systemd units, which keeps repeated keys."""

    def __init__(self) -> None:
        super().__init__(strict=False, dict_type=_Repeated)

    def optionxform(self, optionstr: str) -> str:
        return optionstr

    def all(self, option: str) -> list[str]:
        return self["Service"][option].split("\n")


class _Repeated(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(key), list):
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def read_unit() -> Unit:
    unit = Unit()
    unit.read(UNIT)
    return unit


def instructions() -> list[list[str]]:
    """Return the Dockerfile's instructions, each with its name and its arguments."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


def read_compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def read_manifests(folder: Path = KUBERNETES) -> dict[str, dict[str, Any]]:
    """Return the manifests by kind: there is one of each."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    found = [yaml.safe_load((folder / name).read_text()) for name in listed]
    return {each["kind"]: each for each in found}


def on_systemd() -> Place:
    unit = read_unit()
    environ = dict(line.split("=", 1) for line in unit.all("Environment"))
    state, credentials = "/var/lib", "/run/credentials/chargehand.service"

    def there(text: str) -> str:
        return text.replace("%S", state).replace("%d", credentials)

    _, *command = there(unit["Service"]["ExecStart"]).split()
    return Place(command, {name: there(text) for name, text in environ.items()}, credentials, f"{state}/chargehand")


def image_environ() -> dict[str, str]:
    last = [rest for name, rest in instructions() if name == "ENV"][-1]
    return {name: text for name, text in re.findall(r"(\w+)=(\S+)", last) if name.startswith("CHARGEHAND_")}


def on_compose(node: str) -> Place:
    service = read_compose()["services"][node]
    # Variables that the operator may set, and did not.
    own = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", text) for name, text in service["environment"].items()}
    return Place(service["command"], image_environ() | own, "/run/secrets", "/data")


def settings_env() -> dict[str, str]:
    lines = (KUBERNETES / "settings.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def on_kubernetes() -> Place:
    [container] = read_manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return Place(container["args"], image_environ() | settings_env(), "/etc/chargehand", "/data")
