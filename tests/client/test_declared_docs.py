"""The programs of docs/declared-tasks.md run as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chargehand.testing import ChargehandServer

PAGE = (Path(__file__).parents[2] / "docs/declared-tasks.md").read_text()
BLOCK = re.compile(r"<!-- file: ([\w/]+\.py) -->\n```python\n(.*?)```", re.DOTALL)
CHARGEHAND = str(Path(sys.executable).with_name("chargehand"))
SECONDS = 120.0
SAID = """540
ada: on its way
bob: thank you
eve: thank you
the job failed: nothing in it
1
2
order.id: Expected int, got str
friday-mail 0 9 * * FRI
[2]
"""
SAID_OF_FLOWS = """ada: parcel 17 has 290 g
790 g in the red van
['ada: 500 g in the blue van', 'bob: 500 g in the blue van']
eve: no parcel: there is nothing to pack
the job failed: skipped: step 'pack' failed
"""


def test_every_program_is_run() -> None:
    assert PAGE.count("```python") == len(BLOCK.findall(PAGE))


@pytest.mark.timeout(300)  # it starts several processes, perhaps on a busy machine
@pytest.mark.xdist_group("processes")
def test_the_programs_do_what_the_page_says(tmp_path: Path) -> None:
    here = tmp_path / "mine"
    (here / "shop").mkdir(parents=True)
    (here / "shop/__init__.py").touch()
    (here / "conftest.py").write_text('pytest_plugins = ["chargehand.testing"]\n')
    for name, program in BLOCK.findall(PAGE):
        (here / name).write_text(program)
    [worker] = re.findall(r"```\n(chargehand worker .*)\n```", PAGE)
    with ChargehandServer(tmp_path) as server:
        environ = os.environ | {"CHARGEHAND_URL": server.url, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        with subprocess.Popen([CHARGEHAND, *worker.split()[1:]], cwd=here, env=environ) as working:
            try:
                assert _run([sys.executable, "order.py"], here, environ) == SAID
                assert _run([sys.executable, "flow.py"], here, environ) == SAID_OF_FLOWS
            finally:
                working.terminate()
        schedules = {each.name: each.cron for each in server.client.schedules.find()}
        assert schedules == {"sweep": "30 2 * * *", "friday-mail": "0 9 * * FRI"}
        assert server.client.topics.get("pack").policy.max_consumers == 10
    assert "3 passed" in _run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], here, environ)
    _run([sys.executable, "report.py"], here, environ)
    assert (
        _run(
            [sys.executable, "-c", "import shop.users, chargehand.client as c; c.App(middleware=[shop.users.Users()])"],
            here,
            environ,
        )
        == ""
    )


def _run(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
