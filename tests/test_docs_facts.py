"""What the documents state is true: commands are run or say why not, and every setting, scope and test that is named exists."""

import re
from pathlib import Path

import pytest

from chargehand.config import FILE_VARIABLES, SECTIONS, SETTINGS, VARIABLES
from chargehand.doors.provisioning import names as provisioning
from chargehand.doors.tasks import names as tasks
from chargehand.http.scopes import SCOPES
from tests.api.serving import on_sqlite, serving
from tests.test_docs import ROOT, every_page
from tools.reference import PAGES

WRITTEN = [page for page in every_page() if page.removeprefix("docs/") not in PAGES]
BY_HAND = [page for page in WRITTEN if page != "CHANGELOG.md"]
NOT_RUN = re.compile(r"<!-- not run( here)?: \S.+ -->")
# These look like settings but are calls of the Python client and of the engine, a file, other pages, or parts of the test server.
NO_SETTINGS = {
    *("provisioning.submit", "provisioning.cancel", "provisioning.watch", "provisioning.key"),
    *("engine.jobs", "engine.records"),
    *("server.url", "server.client", "server.receiver", "server.secret", "server.log"),
}


@pytest.mark.parametrize("page", BY_HAND)
def test_every_block_of_commands_is_run_or_says_why_not(page: str) -> None:
    """Blocks marked `sh` are run; a block without a language is only shown, and the line before it says why."""
    lines = (ROOT / page).read_text().splitlines()
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    assert len(fences) % 2 == 0
    bare = [number for number in fences[::2] if lines[number] == "```"]
    assert [f"line {number + 1}" for number in bare if not NOT_RUN.fullmatch(lines[number - 1])] == []


@pytest.mark.parametrize("page", WRITTEN)
def test_every_named_setting_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = {f"{section}.{key}" for section, key in re.findall(r"`(\w+)\.(\w+)`", text) if section in SECTIONS}
    codes = set(re.findall(r"`([\w.]+)`", (ROOT / "docs/reference/errors.md").read_text()))
    assert {
        name for name in named if not name.endswith((".md", ".py"))
    } - SETTINGS.keys() - codes - NO_SETTINGS == set()
    variables = {name for name in re.findall(r"\bCHARGEHAND_[A-Z_]+[A-Z]\b", text) if _section(name) in SECTIONS}
    assert variables - VARIABLES.keys() - FILE_VARIABLES.keys() == set()


def _section(variable: str) -> str:
    return variable.split("_")[1].lower()


@on_sqlite
async def test_every_scope_of_a_route_is_in_the_table_and_every_scope_in_the_table_is_used(
    store_url: str, tmp_path: Path
) -> None:
    async with serving(store_url, {"provisioning.enabled": True, "server.data_dir": str(tmp_path)}) as server:
        asked = {route.scope for route in server.routes() if route.scope}
    # These doors check scopes in their handlers.
    looked_at = {
        *tasks.WORKER_SCOPES,
        tasks.PRODUCE,
        tasks.ADMIN,
        tasks.ALL_TENANTS,
        provisioning.PULL,
        provisioning.PUSH,
    }
    assert asked | looked_at == set(SCOPES)


@pytest.mark.parametrize("page", WRITTEN)
def test_every_named_scope_exists(page: str) -> None:
    heads = {scope.partition(":")[0] for scope in SCOPES if ":" in scope}
    named = set(re.findall(rf"`((?:{'|'.join(heads)}):[a-z-]+)`", (ROOT / page).read_text()))
    assert named - SCOPES.keys() == set()


@pytest.mark.parametrize(
    ("page", "least"), [("docs/provisioning-contract.md", 20), ("docs/compatibility.md", 60), ("docs/security.md", 50)]
)
def test_every_test_that_is_named_as_a_proof_exists(page: str, least: int) -> None:
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(test_\w+))?`", (ROOT / page).read_text())
    assert len(named) > least
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).is_file() or (test and f"def {test}(" not in (ROOT / "tests" / file).read_text())
    ]
    assert missing == []


def test_every_file_that_the_walk_through_the_code_names_exists() -> None:
    """Newcomers find their way by this page alone. Paths begin at the project, the package, or the described folder."""
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*)(?:::\w+)?`", (ROOT / "docs/internals.md").read_text()))
    package = ROOT / "src" / "chargehand"
    described = (
        "store",
        "store/sql",
        "doors/inference",
        "doors/tasks",
        "doors/provisioning",
        "client",
        "commands",
        "console",
        "console/static",
    )
    rooms = [ROOT, package, *(package / room for room in described)]
    assert len(named) > 60
    stands_for_many = {name for name in named if re.search("[A-Z]{4}", name)}
    assert [name for name in sorted(named - stands_for_many) if not any((room / name).exists() for room in rooms)] == []
