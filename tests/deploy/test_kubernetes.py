"""What Kubernetes is given: put together by real kustomize and Helm, and compared with the published schemas."""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml  # type: ignore[import-untyped]

from chargehand import __version__
from tests.deploy.places import CHART, KUBERNETES, make_secrets, read_manifests, settings_env

OLDEST = "1.25"  # that the chart accepts
# Values that switch every part of the chart on, and every part off that can be.
ALL_ON: dict[str, Any] = {
    "image": {"digest": f"sha256:{'0' * 64}", "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}]},
    "files": {"storageClass": "shared"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "jobs", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
            ]
        }
    },
    "serviceAccount": {"name": "jobs", "annotations": {"a": "b"}},
    "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "jobs.example.com",
        "tlsSecretName": "certificate",
        "annotations": {"a": "b"},
    },
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
ALL_OFF: dict[str, Any] = {
    "replicas": 1,
    "files": {"persistent": False},
    "serviceAccount": {"create": False},
    "disruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "podAnnotations": {"prometheus.io/scrape": None, "prometheus.io/port": None},
}
needs_helm = pytest.mark.deploy("helm")
Document = dict[str, Any]


def check(document: Document) -> None:
    """Compare it with the schemas of the oldest and the newest Kubernetes; an unknown field is an error."""
    import kubernetes_validate  # `make test-deploy` installs it

    for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


def kustomized(program: list[str], folder: Path) -> list[Document]:
    shutil.copytree(KUBERNETES, folder, dirs_exist_ok=True)
    make_secrets(folder / "secrets", "db.example.com")
    return _documents(*program, folder)


def helmed(values: dict[str, Any] | None = None, release: str = "chargehand") -> list[Document]:
    return _documents(*_helm(release), values=values)


def _helm(release: str) -> list[str | Path]:
    # Without the version, Helm takes that which was the newest when it was built, or an old one if Go alone has built it.
    return ["helm", "template", release, CHART, "--kube-version", OLDEST, "--namespace", "chargehand", "--values", "-"]


def _documents(*command: str | Path, values: dict[str, Any] | None = None) -> list[Document]:
    done = _run(*command, values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def _run(*command: str | Path, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, timeout=60)


def _kinds(documents: list[Document]) -> dict[str, Document]:
    found = {document["kind"]: document for document in documents}
    assert len(found) == len(documents)
    return found


# the manifests ----------------------------------------------------------------------------------------------------------


@pytest.mark.deploy
def test_every_manifest_follows_the_published_schemas() -> None:
    for manifest in read_manifests().values():
        check(manifest)


@pytest.mark.deploy
def test_the_schemas_find_a_misspelt_field() -> None:
    deployment = copy.deepcopy(read_manifests()["Deployment"])
    pod = deployment["spec"]["template"]["spec"]
    pod["terminationGracePeriodSecond"] = pod.pop("terminationGracePeriodSeconds")
    with pytest.raises(jsonschema.ValidationError, match="terminationGracePeriodSecond"):
        check(deployment)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["kubectl", "kustomize"], marks=pytest.mark.deploy("kubectl")),
        pytest.param(["kustomize", "build"], marks=pytest.mark.deploy("kustomize")),
    ],
    ids=" ".join,
)
def test_kustomize_puts_the_manifests_together(program: list[str], tmp_path: Path) -> None:
    found = _kinds(kustomized(program, tmp_path))
    assert found.keys() == {*read_manifests(), "ConfigMap", "Secret"}
    for document in found.values():
        check(document)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == f"chargehand:{__version__}"
    # The Deployment names what was made from settings and secrets, by a hash of the content.
    names = [found[kind]["metadata"]["name"] for kind in ("ConfigMap", "Secret")]
    assert all(re.fullmatch(r"chargehand(-settings)?-[a-z0-9]{10}", name) for name in names)
    assert [container["envFrom"][0]["configMapRef"]["name"], pod["volumes"][0]["secret"]["secretName"]] == names


# the chart --------------------------------------------------------------------------------------------------------------


def test_the_values_of_the_chart_follow_their_own_schema_and_are_each_explained() -> None:
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text()))
    assert values["settings"] == settings_env()
    blocks = re.split(r"\n\n", text)
    unexplained = [block for block in blocks if not block.startswith(("#", "image:", "serviceAccount:", "service:"))]
    assert unexplained == []


def test_the_version_of_the_chart_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@needs_helm
def test_helm_finds_nothing_to_complain_about() -> None:
    done = _run("helm", "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize("values", [{}, ALL_ON, ALL_OFF], ids=["default", "all on", "all off"])
def test_what_the_chart_makes_follows_the_published_schemas(values: dict[str, Any]) -> None:
    found = _kinds(helmed(values))
    for kind, document in found.items():
        if kind != "ServiceMonitor":  # of the Prometheus Operator, not of Kubernetes
            check(document)


@pytest.mark.deploy("helm", "kustomize")
def test_the_chart_makes_what_the_manifests_are(tmp_path: Path) -> None:
    """Helm leaves the namespace and the Secret to others, and has labels of its own; kustomize puts hashes into names."""
    expected = _kinds(kustomized(["kustomize", "build"], tmp_path))
    made = _kinds(helmed())
    assert expected.keys() - made.keys() == {"Namespace", "Secret"}
    for kind, document in made.items():
        assert _bare(document) == _bare(expected[kind]), kind


def _bare(document: Document) -> Any:
    """Return it without what kustomize and Helm do each in their own way."""
    text = re.sub(r'"(chargehand(?:-settings)?)-[a-z0-9]{10}"', r'"\1"', json.dumps(document))
    bare = json.loads(text)
    bare["metadata"].pop("labels", None)

    def without(place: Any) -> Any:
        if isinstance(place, list):
            return [without(each) for each in place]
        if isinstance(place, dict):
            kept = {key: without(value) for key, value in place.items() if not key.startswith(HELMS_OWN)}
            return {key: value for key, value in kept.items() if not (key == "annotations" and value == {})}
        return place

    return without(bare)


HELMS_OWN = ("helm.sh/", "checksum/", "app.kubernetes.io/instance")


@needs_helm
def test_values_switch_the_parts_of_the_chart() -> None:
    default, on, off = (_kinds(helmed(values)) for values in ({}, ALL_ON, ALL_OFF))
    assert on.keys() - default.keys() == {"Ingress", "HorizontalPodAutoscaler", "ServiceMonitor"}
    assert off.keys() == {"Deployment", "Service", "ConfigMap"}
    assert "replicas" not in on["Deployment"]["spec"], "the autoscaler decides"
    assert on["Ingress"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"] == {
        "name": on["Service"]["metadata"]["name"],
        "port": {"name": on["Service"]["spec"]["ports"][0]["name"]},
    }
    pod = on["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"chargehand@sha256:{'0' * 64}"
    assert pod["serviceAccountName"] == on["ServiceAccount"]["metadata"]["name"] == "jobs"
    assert off["Deployment"]["spec"]["template"]["spec"]["volumes"][1]["emptyDir"] == {}


@needs_helm
def test_a_changed_setting_restarts_the_nodes_and_leaves_the_others_as_they_are() -> None:
    before, after = _kinds(helmed()), _kinds(helmed({"settings": {"CHARGEHAND_LOG_LEVEL": "debug"}}))
    assert after["ConfigMap"]["data"] == settings_env() | {"CHARGEHAND_LOG_LEVEL": "debug"}
    assert before["Deployment"]["spec"]["template"] != after["Deployment"]["spec"]["template"]


@needs_helm
def test_two_releases_in_a_namespace_share_nothing_but_the_secret() -> None:
    first, second = _kinds(helmed()), _kinds(helmed(release="night"))
    for kind in first:
        assert first[kind]["metadata"]["name"] != second[kind]["metadata"]["name"]
    assert second["Service"]["metadata"]["name"] == "night-chargehand"
    labels = second["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        second["Deployment"]["spec"]["selector"]["matchLabels"],
        second["Service"]["spec"]["selector"],
        second["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        second["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert first["Service"]["spec"]["selector"] != second["Service"]["spec"]["selector"]


@needs_helm
@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replica": 3}, "replica"),
        ({"settings": {"CHARGEHAND_LOG_LEVEL": 3}}, "CHARGEHAND_LOG_LEVEL"),
        ({"settings": {"LOG_LEVEL": "debug"}}, "LOG_LEVEL"),
        ({"settings": {"CHARGEHAND_SERVER_LISTEN": "0.0.0.0:80"}}, "CHARGEHAND_SERVER_LISTEN"),
        ({"ingress": {"enabled": True}}, "host"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(values: dict[str, Any], word: str) -> None:
    done = _run(*_helm("chargehand"), values=values)
    assert done.returncode != 0
    assert word in done.stderr
