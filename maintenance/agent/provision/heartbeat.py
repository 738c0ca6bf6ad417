"""Report the current step, its progress and the last log lines every few seconds, until the final report was sent.

If the controller answers that the work is no longer wanted, stop it: nothing else on this machine asks as often.
"""

import time
from collections.abc import Callable

from provision.controller import PERMITTED, STOPPED, Controller, secrets
from provision.errors import Exit, ToldToStop
from provision.firmware import FLASHING
from provision.journal import say
from provision.places import Places
from provision.progress import FILE
from provision.report import REPORTED
from provision.run import CommandFailed, run
from provision.units import DISPATCHER, STEPS, tail

SECONDS = 30.0


def beat_on(places: Places, seconds: float = SECONDS, sleep: Callable[[float], None] = time.sleep) -> int:
    while not places.has(REPORTED) and not places.has(STOPPED):
        # Before that the dispatcher reports: it may still find that this is the wrong machine.
        if places.has(PERMITTED):
            try:
                beat(places)
            except ToldToStop as error:
                say(str(error))
                stop_work(places)
                return Exit.OK
            except OSError as error:
                say(f"the heartbeat was not answered: {error}")
        sleep(seconds)
    return Exit.OK


def beat(places: Places) -> None:
    controller = Controller.of(places)
    if controller is None:
        return
    said = dict(places.read(FILE) or {"step": DISPATCHER})
    said["log_tail"] = secrets(places).hide(tail(str(said["step"])))
    controller.progress(said)


def stop_work(places: Places) -> None:
    target = (places.read("recipe.json") or {}).get("task_target")
    # A machine whose flash is interrupted never starts again.
    names = [name for name in STEPS if name != "firmware" or not places.has(FLASHING)]
    units = [f"{name}.service" for name in names] + ([str(target)] if target else [])
    try:
        run(["systemctl", "--no-block", "stop", *units], timeout=30)
    except CommandFailed as error:
        say(str(error))
