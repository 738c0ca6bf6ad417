"""`chargehand demo` where things do not happen as they should. That it works is shown elsewhere."""

import pytest

from chargehand.commands.demo import scenes
from chargehand.doors.inference.embedded.process import Embedded
from tests.commands.commanding import invoked


async def test_a_machine_that_is_too_slow_is_told_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := Embedded.available():
        pytest.skip(reason)
    monkeypatch.setattr(scenes, "PATIENCE_SECONDS", 0.0)
    told = (await invoked("", "demo")).good(1)
    assert told.err.splitlines()[-1].startswith("chargehand: the demo has waited 0 s for the embedded model: ")
    assert "Traceback" not in told.err


async def test_a_job_that_failed_is_not_waited_for() -> None:
    receiver = scenes.DemoReceiver("", scenes.Teller(as_json=True))
    receiver._told["1"] = [{"state": "failed", "error": "out of memory"}]
    with pytest.raises(scenes.GaveUp, match="out of memory"):
        await receiver.until("1", "done")
