"""python3 -m provision dispatch | step NAME | report success | report failed UNIT | heartbeat"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from provision.errors import Exit, Trouble
from provision.journal import say
from provision.places import Places
from provision.units import STEPS, bystander


def main(argv: Sequence[str]) -> int:
    # SIGTERM becomes an exception, so that mounts are unmounted.
    signal.signal(signal.SIGTERM, _stop)
    places = Places.of(os.environ)
    try:
        return _do(places, list(argv))
    except Trouble as error:
        say(f"error: {error}")
        return error.code
    except Exception as error:
        # Only the place, not the text: an unexpected error may repeat secrets.
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}" if at else "?"
        say(f"error: {type(error).__name__} at {where}" + (f": {error.strerror}" if isinstance(error, OSError) else ""))
        return Exit.UNEXPECTED


def _do(places: Places, argv: list[str]) -> int:
    """Run a command. Each imports what it needs only then: on a slow machine most of an agent's time is imports."""
    match argv:
        case ["report", "failed", unit] if unit and (other := bystander(unit)):
            say(f"{unit} did not run because {other} failed, which reports for itself")
            return Exit.OK
    from provision import heartbeat, report
    from provision.controller import trust_authorities

    trust_authorities(places)
    match argv:
        case ["dispatch"]:
            from provision.dispatch import dispatch

            dispatch(places, os.environ)
        case ["step", name] if name in STEPS:
            from provision.steps import perform

            perform(places, name)
        case ["report", "success"]:
            return report.success(places)
        case ["report", "failed", unit] if unit:
            return report.failed(places, unit)
        case ["heartbeat"]:
            seconds = float(os.environ.get("PROVISION_HEARTBEAT_SECONDS") or heartbeat.SECONDS)
            return heartbeat.beat_on(places, seconds)
        case _:
            say(f"usage: {__doc__}; steps: {', '.join(STEPS)}")
            return Exit.USAGE
    return Exit.OK


def _stop(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
