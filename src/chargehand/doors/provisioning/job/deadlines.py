"""The deadlines of a job.

While it waits for the machine's report there are three: for the whole wait, for the first sign that the machine boots, and for the
next sign from a machine that reported before.
"""

from typing import NamedTuple

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.job.ledger import JobLedger
from chargehand.doors.provisioning.job.position import Position
from chargehand.doors.provisioning.job.run import JobRun, RunStep
from chargehand.doors.provisioning.recipe.recipe import Recipe
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.engine.job import SECOND


class Deadline(NamedTuple):
    at: int
    key: Key
    reason: str
    message: str


class Deadlines:
    def __init__(self, settings: ProvisioningConfig) -> None:
        self._settings = settings

    def current(self, position: Position, recipe: Recipe) -> dict[str, int]:
        """Return the deadlines of what the job waits for now, each by the key of the failure if it passes."""
        run, settings = position.run, self._settings
        if run is None or position.status == "complete":
            return {}
        if run.cleanup_at is not None:
            return {Key.CLEANUP_UNMOUNT: run.cleanup_at + _micros(settings.cleanup_seconds)}
        if run.step is RunStep.WAIT and position.ledger is not None:
            deadline = self.for_report(run, recipe, position.ledger)
            return {deadline.key: deadline.at}
        if run.step is RunStep.POLL and run.reset is not None:
            since = max(run.reset.asked_at, run.taken_at)
            return {Key.REDFISH_POLL: since + _micros(settings.bmc_back_seconds)}
        return {"boot": run.began_at + _micros(settings.boot_seconds)}

    def for_report(self, run: JobRun, recipe: Recipe, ledger: JobLedger) -> Deadline:
        """Return the deadline that passes first while the job waits for the machine's report."""
        clocks = [self._whole_wait(run, recipe)]
        reset_at = run.reset.asked_at if run.reset else run.began_at
        if ledger.heard_at is not None:
            clocks.append(self._silence(run, ledger, ledger.heard_at))
        elif not ledger.shows_life_since(reset_at) and not ledger.has_whole_medium:
            clocks.append(self._first_sign(run, ledger, reset_at))
        return min(clocks, key=lambda deadline: deadline.at)

    def _whole_wait(self, run: JobRun, recipe: Recipe) -> Deadline:
        settings = self._settings
        allowed = settings.maintenance_seconds if recipe.kind == "maintenance" else settings.install_seconds
        seconds = recipe.timeout_minutes * 60 if recipe.timeout_minutes else allowed
        reset_at = run.reset.asked_at if run.reset else run.began_at
        at = max(
            (run.booted_at or reset_at) + _micros(seconds),
            # While the job had no owner, perhaps no node listened: the machine gets the time to report again.
            run.taken_at + _micros(min(seconds, settings.silence_seconds)),
        )
        return Deadline(at, Key.WEBHOOK_WAIT, "no_report", f"no report of success or failure within {seconds:g} s")

    def _silence(self, run: JobRun, ledger: JobLedger, heard_at: int) -> Deadline:
        seconds = self._settings.silence_seconds
        doing = ledger.steps[-1].step if ledger.steps else "it started"
        message = f"the machine was last heard of at {doing}, and then not for {seconds:g} s"
        return Deadline(max(heard_at, run.taken_at) + _micros(seconds), Key.WEBHOOK_WAIT, "agent_silent", message)

    def _first_sign(self, run: JobRun, ledger: JobLedger, reset_at: int) -> Deadline:
        seconds, shown = self._settings.fetch_seconds, run.reset is not None and run.reset.could_be_seen
        reader = "nobody read on in" if ledger.fetches else "nobody fetched"
        message = f"{reader} the medium within {seconds:g} s after the reset"
        return Deadline(
            max(reset_at, run.taken_at) + _micros(seconds),
            Key.WEBHOOK_WAIT if shown else Key.REDFISH_RESET,
            "never_booted" if ledger.fetches else "never_fetched",
            message if shown else f"{message}, and nothing shows that the machine was reset",
        )


def _micros(seconds: float) -> int:
    return int(seconds * SECOND)
