"""`chargehand demo` when a scene fails; the tests of the documents run it whole."""

import pytest

from chargehand.commands.demo import scenes
from chargehand.doors.inference.embedded.process import Embedded
from tests.commands.running import invoked


async def test_a_machine_that_is_too_slow_gets_one_line_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := Embedded.available():
        pytest.skip(reason)
    monkeypatch.setattr(scenes, "PATIENCE_SECONDS", 0.0)
    told = (await invoked("", "demo")).good(1)
    assert told.err.splitlines()[-1].startswith("chargehand: the demo has waited 0 s for the embedded model: ")
    assert "Traceback" not in told.err


async def test_a_job_that_failed_is_not_waited_for() -> None:
    receiver = scenes.DemoReceiver("", scenes.Printer(as_json=True))
    receiver._received["1"] = [{"state": "failed", "error": "out of memory"}]
    with pytest.raises(scenes.GaveUp, match="out of memory"):
        await receiver.until("1", "done")
