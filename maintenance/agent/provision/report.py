"""The final report, exactly one.

systemd starts a reporting unit for each unit that did not start: the one that failed, all that depend on it, and their target. Only
the first that failed by itself reports. The report is created once and stored, so that a retry is the same delivery.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from provision import VERSION
from provision.controller import STOPPED, Controller, secrets
from provision.errors import Exit
from provision.journal import say
from provision.places import Places
from provision.units import TAIL_CHARACTERS, State, state, tail

OUTCOME = "outcome"  # what is reported: success, or the failed unit
FIRST_FAILURE = "first-failure"
REPORTED = "reported"
STARTED = "started.json"


def success(places: Places) -> int:
    return _deliver(places, "success", "", None)


def failed(places: Places, unit: str) -> int:
    return _deliver(places, "failed", unit, state(unit))


def _deliver(places: Places, status: str, unit: str, how: State | None) -> int:
    controller = Controller.of(places)
    if controller is None:
        say("there is nobody to report to: no task was found")
        return Exit.OK
    if places.has(STOPPED):
        say("the controller wants no report from this boot")
        return Exit.OK
    word = unit or status
    if not places.write_once(OUTCOME, word.encode()) and (places.run / OUTCOME).read_text() != word:
        say(f"{(places.run / OUTCOME).read_text()} was reported already, or is about to be: {word} stays silent")
        return Exit.OK
    if unit:
        places.write_once(FIRST_FAILURE, unit.encode())
    said = _payload(places, status, unit, how)
    try:
        answer = controller.status(said)
    except OSError as error:
        say(f"the report was not heard: {error}")
        return Exit.FAILED
    if answer >= 300:
        say(f"the controller answered {answer}")
        return Exit.FAILED
    places.write(REPORTED, b"")
    say(f"reported: {status}" + (f", {unit}" if unit else ""))
    return Exit.OK


def _payload(places: Places, status: str, unit: str, how: State | None) -> Mapping[str, Any]:
    """Return the payload, which the first attempt created."""
    name = f"delivery-{status}.json"
    started = places.read(STARTED) or {}
    made: dict[str, Any] = {
        "status": status,
        "delivery_id": str(uuid.uuid4()),
        "dispatcher_version": VERSION,
        "finished_at": now(),
        **{member: started[member] for member in ("task_target", "schema_id", "started_at") if member in started},
    }
    if unit:
        log = tail(unit)
        if how is not None and how.signal is not None:
            log += f"{unit} was ended by signal {how.signal} ({how.result})\n"
        made |= {"failed_step": unit, "log_tail": secrets(places).hide(log[-TAIL_CHARACTERS:])}
        if how is not None and how.exit_code is not None:
            made["exit_code"] = how.exit_code
    places.write_once(name, made)
    kept: dict[str, Any] = places.read(name)
    return kept


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
