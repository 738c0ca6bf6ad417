"""Shells complete commands, options and ids of jobs."""

import asyncio
import os
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from tests.api.serving import on_sqlite, serving, talking
from tests.api.test_flows import a_step, submit
from tests.commands.running import CHARGEHAND, ENVIRON, chargehand, invoked

pytestmark = pytest.mark.xdist_group("processes")
NOWHERE = "http://127.0.0.1:9"


async def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """In a real bash, with the function that the script defines."""
    script = f"""
        PATH={Path(CHARGEHAND).parent}:$PATH
        source <(chargehand completion bash)
        complete -p chargehand
        for line in "chargehand deli" "chargehand jobs list --sta" "chargehand jobs list --state fa"; do
            COMP_WORDS=($line); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
            _chargehand_completion chargehand; echo "${{COMPREPLY[@]}}"
        done
    """
    bash = await asyncio.create_subprocess_exec(
        "bash", "--norc", "-c", script, env=ENVIRON, cwd=tmp_path, stdout=PIPE, stderr=PIPE
    )
    said, errors = await asyncio.wait_for(bash.communicate(), 60)
    assert errors == b""
    registered, *completed = said.decode().splitlines()
    assert "-F _chargehand_completion chargehand" in registered
    assert completed == ["deliveries", "--state", "failed"]
    assert os.listdir(tmp_path) == [], "no file is written"


@on_sqlite
async def test_ids_of_jobs_are_completed_with_kind_queue_and_state(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        job_id = await api.submit()
        asked = f"chargehand watch {job_id[:12]}"
        for shell, environ in (
            ("zsh", {"_TYPER_COMPLETE_ARGS": asked}),
            ("fish", {"_TYPER_COMPLETE_ARGS": asked, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
        ):
            told = await chargehand(server.url, environ={"_CHARGEHAND_COMPLETE": f"complete_{shell}", **environ})
            assert job_id in told.good().out
            assert "job q: queued" in told.out.replace("\\", "")


@on_sqlite
async def test_ids_of_flows_and_names_of_their_steps_are_completed(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        await api.submit()
        flow_id = await submit(api, a_step("build"), a_step("test", "build"), name="night")
        for asked, told in (
            ("chargehand flows show 01", [f"flow night: running {flow_id}"]),
            (f"chargehand flows retry {flow_id} --from te", ["waiting test"]),
            ("chargehand flows retry 123 --from te", []),
        ):
            environ = {"_TYPER_COMPLETE_ARGS": asked, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
            found = await chargehand(server.url, environ={"_CHARGEHAND_COMPLETE": "complete_fish", **environ})
            assert [" ".join(reversed(line.split("\t"))) for line in found.good().out.split("\n") if line] == told


async def test_without_a_server_nothing_is_completed_and_nothing_fails() -> None:
    environ = {"_CHARGEHAND_COMPLETE": "complete_bash", "COMP_WORDS": "chargehand watch 01", "COMP_CWORD": "2"}
    told = await chargehand(NOWHERE, environ=environ)
    assert (told.code, told.out.strip(), told.err) == (0, "", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_each_shell_has_its_script(shell: str) -> None:
    told = (await invoked(NOWHERE, "completion", shell)).good().out
    assert f"_CHARGEHAND_COMPLETE=complete_{shell}" in told
    assert (await invoked(NOWHERE, "completion", shell, "--json")).good().json["script"] == told.rstrip("\n")
