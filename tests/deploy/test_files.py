"""The files under deploy/: least privilege, timeouts that fit the server's own, and only settings that exist."""

import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chargehand import __version__
from chargehand.config import FILE_VARIABLES, VARIABLES, load_config
from tests.deploy.places import (
    DEPLOY,
    KUBERNETES,
    ROOT,
    UNIT,
    image_environ,
    instructions,
    make_secrets,
    on_compose,
    on_kubernetes,
    on_systemd,
    read_compose,
    read_manifests,
    read_unit,
    settings_env,
)

DEFAULTS = load_config(environ={})
DRAIN_SECONDS = DEFAULTS.server.drain_seconds + DEFAULTS.webhooks.timeout_seconds
USER = 10001


@pytest.mark.parametrize("environ", [on_systemd().environ, on_compose("node-1").environ, on_kubernetes().environ])
def test_every_variable_is_a_setting(environ: dict[str, str]) -> None:
    assert len(environ) > 2
    assert [name for name in environ if name not in VARIABLES and name not in FILE_VARIABLES] == []


def test_the_version_is_that_of_the_package() -> None:
    images = [service["image"] for name, service in read_compose()["services"].items() if name.startswith("node")]
    assert set(images) == {f"chargehand:{__version__}"}
    assert f"newTag: {__version__}\n" in (KUBERNETES / "kustomization.yaml").read_text()


# secrets ----------------------------------------------------------------------------------------------------------------


def test_secrets_are_created_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    make_secrets(folder, "db.example.com")
    first = {path.name: path.read_text() for path in folder.iterdir()}
    make_secrets(folder, "elsewhere")
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "operator-token").stat().st_mode) == 0o600
    assert len(set(first.values())) == len(first) == 7
    assert first["store-url"] == f"postgresql://chargehand:{first['postgres-password']}@db.example.com/chargehand\n"


def test_the_created_secrets_are_a_valid_configuration(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    environ = {
        "CHARGEHAND_STORE_URL_FILE": str(tmp_path / "store-url"),
        "CHARGEHAND_WEBHOOKS_SECRET_FILE": str(tmp_path / "webhooks-secret"),
        "CHARGEHAND_PROVISIONING_KEY_FILE": str(tmp_path / "provisioning-key"),
    }
    config = load_config(tmp_path / "chargehand.toml", environ)
    assert {token.name: token.scopes for token in config.auth.tokens} == {
        "operator": ("*",),
        "prometheus": ("metrics",),
    }


# systemd ----------------------------------------------------------------------------------------------------------------


def _systemd_analyze(*arguments: object) -> str:
    done = subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    if "unrecognized option" in done.stderr or "Unknown operation" in done.stderr:
        pytest.fail("this systemd-analyze is too old: it takes systemd 250 or newer")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.deploy("systemd-analyze")
def test_systemd_accepts_every_line_of_the_unit(tmp_path: Path) -> None:
    """Except for the program, which is not installed here."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/chargehand/bin/chargehand", "/bin/true"))
    assert UNIT.name not in _systemd_analyze("verify", "--man=no", copy)


@pytest.mark.deploy("systemd-analyze")
def test_systemd_analyze_rates_the_exposure_of_the_unit_as_low() -> None:
    said = _systemd_analyze("security", "--offline=true", UNIT)
    level = re.search(r"exposure level for \S+ ([\d.]+)", said)
    assert level is not None, said
    assert float(level[1]) < 2


def test_the_unit_leaves_time_to_drain_and_uses_notify() -> None:
    unit = read_unit()["Service"]
    assert float(unit["TimeoutStopSec"]) > DRAIN_SECONDS
    assert unit["Type"] == "notify"
    assert float(unit["WatchdogSec"]) >= 10
    assert unit["RestartPreventExitStatus"] == "2"  # the exit code for an invalid configuration


def test_every_credential_that_is_used_is_loaded() -> None:
    used = set(re.findall(r"%d/([\w.-]+)", UNIT.read_text()))
    assert used == {line.split(":")[0] for line in read_unit().all("LoadCredential")}


# the image --------------------------------------------------------------------------------------------------------------


def test_the_image_is_built_in_stages_from_hashed_packages_and_does_not_run_as_root() -> None:
    found = instructions()
    names = [name for name, _ in found]
    last = len(names) - 1 - names[::-1].index("FROM")
    installs = [rest for name, rest in found if name == "RUN" and " install " in rest and "pip" in rest]
    assert names.count("FROM") == 2
    assert [rest for name, rest in found if name == "FROM"][1] == "${PYTHON_IMAGE}"
    assert "--require-hashes" in installs[0]
    assert "--no-deps" in installs[1]
    assert [rest for name, rest in found[last:] if name == "USER"] == [f"{USER}:{USER}"]
    assert "pip" not in " ".join(rest for _, rest in found[last:])
    assert "HEALTHCHECK" in names[last:]
    assert image_environ()["CHARGEHAND_SERVER_DATA_DIR"] == "/data"


def test_every_file_that_the_image_copies_exists_and_is_not_ignored() -> None:
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    wanted = {name for names in copied for name in names}
    passed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert wanted == passed
    assert [name for name in wanted if not (ROOT / name).exists()] == []


def test_build_dependencies_are_not_shipped() -> None:
    """They are in the same lock file as the server's packages; the image removes them."""
    [removed] = re.findall(r"uninstall --yes ([\w -]+?)(?: &&|\n|$)", " ".join(rest for _, rest in instructions()))
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert "hatchling" in removed.split()
    assert set(removed.split()) <= locked


# Compose ----------------------------------------------------------------------------------------------------------------


def test_the_nodes_of_compose_have_the_least_rights_and_time_to_drain() -> None:
    services = read_compose()["services"]
    nodes = [service for name, service in services.items() if name.startswith("node-")]
    assert len(nodes) == 2
    for node in nodes:
        assert node["read_only"] is True
        assert node["cap_drop"] == ["ALL"]
        assert node["security_opt"] == ["no-new-privileges:true"]
        assert float(node["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS
        assert node["depends_on"]["postgres"]["condition"] == "service_healthy"
        assert all(port.startswith("127.0.0.1:") for port in node["ports"])
    assert "ports" not in services["postgres"]
    assert services["postgres"]["networks"] == ["database"]
    assert read_compose()["networks"]["database"] == {"internal": True}


def test_make_secrets_creates_every_secret_of_compose(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    compose = read_compose()
    used = {name for service in compose["services"].values() for name in service["secrets"]}
    assert used == set(compose["secrets"])
    assert {Path(each["file"]).name for each in compose["secrets"].values()} <= {
        path.name for path in tmp_path.iterdir()
    }
    text = (DEPLOY / "compose/compose.yaml").read_text()
    assert set(re.findall(r"/run/secrets/([\w.-]+)", text)) <= used
    volumes = {entry.split(":")[0] for service in compose["services"].values() for entry in service["volumes"]}
    assert volumes == set(compose["volumes"])


# Kubernetes -------------------------------------------------------------------------------------------------------------


def _pod() -> dict[str, Any]:
    pod: dict[str, Any] = read_manifests()["Deployment"]["spec"]["template"]["spec"]
    return pod


def test_the_pod_meets_the_restricted_pod_security_standard() -> None:
    pod = _pod()
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == USER
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"].keys() == {"requests", "limits"}
    assert read_manifests()["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_kubernetes_adds_no_environment_variables() -> None:
    """A Service named chargehand would set CHARGEHAND_PORT and others, which are not settings."""
    assert _pod()["enableServiceLinks"] is False


def test_probes_use_the_right_paths_and_the_pod_has_time_to_drain() -> None:
    pod = _pod()
    [container] = pod["containers"]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    _, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN_SECONDS + float(pause)


def test_the_manifests_refer_to_each_other() -> None:
    found = read_manifests()
    pod = _pod()
    [container] = pod["containers"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container["volumeMounts"]}
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert settings_env()["CHARGEHAND_SERVER_LISTEN"].endswith(f":{container['ports'][0]['containerPort']}")
    assert found["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] < found["Deployment"]["spec"]["replicas"]


def test_every_secret_that_a_setting_names_is_in_the_secret(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    text = (KUBERNETES / "kustomization.yaml").read_text()
    packed = set(re.findall(r"- secrets/([\w.-]+)", text))
    named = set(re.findall(r"/etc/chargehand/([\w.-]+)", (KUBERNETES / "settings.env").read_text()))
    assert packed == named | {"chargehand.toml"}
    assert packed <= {path.name for path in tmp_path.iterdir()}
