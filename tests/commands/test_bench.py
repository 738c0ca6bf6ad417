"""`chargehand bench` measures what it says, and leaves no job unfinished."""

from pathlib import Path

import pytest

from chargehand.client import AsyncClient
from chargehand.commands.bench.load import percentile
from chargehand.commands.bench.report import rate
from chargehand.commands.bench.run import NotMeasured, first_token
from chargehand.http.credentials import hash_token
from tests.api.serving import on_sqlite, serving, talking
from tests.commands.running import invoked
from tests.inference.conformance import OllamaTarget
from tests.inference.stories import MODELS, a_place


@on_sqlite
async def test_a_server_without_a_model_is_measured_and_all_jobs_are_finished(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api:
        told = (await invoked(server.url, "bench", "--seconds", "0.2", "--connections", "4", "--json")).good().json
        assert told["accept"]["count"] == told["work"]["count"] > 0
        assert told["deliveries"]["count"] == 200
        assert 0 < told["accept"]["median_ms"] <= told["accept"]["p99_ms"]
        assert told["first_token"] is None
        assert told["not_measured"] == {"first token": "there is no model; `chargehand targets` shows what there is"}
        for state in ("queued", "running", "failed"):
            assert (await api.get(f"/engine/jobs?state={state}")).good()["jobs"] == []


@on_sqlite
async def test_jobs_that_bench_cannot_finish_are_cancelled(store_url: str) -> None:
    one = {"name": "one", "hash": hash_token("ch_one"), "scopes": ["jobs:read", "jobs:write"]}
    async with serving(store_url, {"auth.tokens": [one]}) as server, talking(server, "ch_one") as api:
        told = await invoked(server.url, "bench", "--seconds", "0.2", "--token", "ch_one")
        assert "this needs `work`" in told.good(2).err
        for state in ("queued", "running"):
            assert (await api.get(f"/engine/jobs?state={state}")).good()["jobs"] == []
        assert (await api.get("/engine/jobs?state=cancelled")).good()["jobs"] != []


async def test_the_first_token_of_a_model_is_timed(tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target, a_place(tmp_path, target) as place:
        api = AsyncClient(place.url, "")
        try:
            timed = await first_token(api, place.url, "", "b")
            assert (timed.model, timed.samples) == ("b", 5)
            assert timed.median_seconds > 0
            assert (await first_token(api, place.url, "", "")).model == "b:latest", "the one that is in memory"
            with pytest.raises(NotMeasured, match="nosuch"):
                await first_token(api, place.url, "", "nosuch")
        finally:
            await api.close()


def test_percentiles_are_values_that_were_measured() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert (percentile(hundred, 50), percentile(hundred, 99), percentile([3.0], 99), percentile([], 50)) == (
        50,
        99,
        3,
        0,
    )
    assert rate([0.001, 0.003], 0.5).per_second == 4
