"""Read the task medium and start the target. All checks are made here, before a disk is touched.

The target is started without waiting for it: an install may take an hour, and this unit's timeout is minutes.
"""

import os
from collections.abc import Mapping

from provision import VERSION, identity, medium, recipe
from provision.controller import REPORT, Controller, keep_authorities, read_report
from provision.errors import Exit, Trouble
from provision.journal import say
from provision.places import Places
from provision.report import now
from provision.resolvers import keep_resolvers
from provision.run import CommandFailed, run
from provision.units import DISPATCHER

MEDIUM_SECONDS = 120.0
CONTROLLER_SECONDS = 300.0  # together with the medium's, less than the unit's timeout


def dispatch(places: Places, environ: Mapping[str, str]) -> None:
    began = now()
    say(f"dispatcher {VERSION}, boot {places.boot_id() or 'unknown'}")
    if places.real and os.geteuid():
        raise Trouble("only root can do this work", Exit.NOT_ROOT)
    keep_resolvers(places)
    task = medium.find(places, _seconds(environ, "PROVISION_MEDIUM_SECONDS", MEDIUM_SECONDS))
    report = read_report(task.files)
    # Written first: from here on a failure can be reported.
    places.write(REPORT, report)
    keep_authorities(places, task.files)
    places.write("medium.json", {"device": task.device})
    schema = recipe.read_schema(task.files)
    wanted = recipe.read_recipe(task.files)
    recipe.check(schema, wanted, task.files)
    recipe.keep(places, wanted, schema, task.files, began)
    identity.check(places, report)
    told = {"step": DISPATCHER, "message": f"found its task for {wanted['task_target']}", "finished": True}
    controller = Controller(places, report)
    controller.may_begin(told, _seconds(environ, "PROVISION_CONTROLLER_SECONDS", CONTROLLER_SECONDS))
    try:
        run(["systemctl", "--no-block", "start", str(wanted["task_target"])], timeout=60)
    except CommandFailed as error:
        raise Trouble(f"the target was not started: {error}", Exit.SYSTEMCTL) from None


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environ.get(name, ""))
    except ValueError:
        return default
