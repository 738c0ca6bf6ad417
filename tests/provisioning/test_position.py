"""Where a job is, from its row, its run and its ledger."""

import pytest
from msgspec.structs import replace

from chargehand.doors.provisioning.job.ledger import JobLedger, Outcome, UnitProgress, Verdict
from chargehand.doors.provisioning.job.position import TOPICS, Status, position_of, status_after, status_before
from chargehand.doors.provisioning.job.run import JobRun, RunStep
from chargehand.engine.job import RESTING, Event, Job, State
from chargehand.engine.queue import Queue

ROW = Job(
    "j", Queue("provision", "t", "q"), State.QUEUED, "", "queued", "", 0, 0, 0, 1, 0, None, None, "", None, None, None, "", "",
    "", None, 1, 0, 0, None, None,
)  # fmt: skip
FAILED = JobLedger(verdict=Verdict("failed", 1, "webhook", "workflow.partition"))


def a_row(state: State, stage: str = "", topic: str = "") -> Job:
    return replace(ROW, state=state, stage=stage, topic=topic or (f"{state}:{stage}" if stage else str(state)))


@pytest.mark.parametrize(
    ("row", "ledger", "status", "outcome"),
    [
        (a_row(State.QUEUED), None, "queued", None),
        (a_row(State.RUNNING, topic="queued"), None, "queued", None),  # claimed, and not shown yet
        (a_row(State.RUNNING, "provisioning"), JobLedger(), "provisioning", None),
        (a_row(State.QUEUED, RESTING, "running:provisioning"), JobLedger(), "provisioning", None),  # between two owners
        (a_row(State.RUNNING, "provisioning"), FAILED, "provisioning", "failed"),  # known, and not shown yet
        (a_row(State.RUNNING, "succeeded"), None, "succeeded", "succeeded"),
        (a_row(State.RUNNING, "failed"), JobLedger(verdict=Verdict("cancelled", 1, "ops")), "failed", "cancelled"),
        (a_row(State.SUCCEEDED), None, "complete", "succeeded"),
        (a_row(State.FAILED), None, "complete", "failed"),
        (a_row(State.CANCELLED), None, "complete", "cancelled"),
    ],
)
def test_callers_see_a_status_and_the_outcome_as_soon_as_it_is_known(
    row: Job, ledger: JobLedger | None, status: Status, outcome: Outcome | None
) -> None:
    position = position_of(row, ledger=ledger)
    assert (position.status, position.outcome) == (status, outcome)


def test_a_job_that_is_queued_again_shows_nothing_of_the_start_before() -> None:
    position = position_of(a_row(State.QUEUED), JobRun(step=RunStep.DONE), FAILED)
    assert (position.run, position.ledger, position.outcome, position.step) == (None, None, None, "build-media")


def test_a_run_that_its_owner_has_just_begun_belongs_to_this_start() -> None:
    run = JobRun(generation=2)
    assert position_of(a_row(State.RUNNING, topic="queued"), run).run is run


def test_a_run_that_is_done_belongs_to_this_start_until_the_end_is_written() -> None:
    run = JobRun(step=RunStep.DONE)
    assert position_of(a_row(State.QUEUED, RESTING, "running:failed"), run, FAILED).run is run


def test_while_the_owner_waits_the_step_is_what_the_machine_reported_last() -> None:
    row, ledger = a_row(State.RUNNING, "provisioning"), JobLedger(steps=(UnitProgress("partition.service", 1, 2),))
    assert position_of(row, JobRun(step=RunStep.WAIT), ledger).step == "partition.service"
    assert position_of(row, JobRun(step=RunStep.WAIT), JobLedger()).step == "wait"
    assert position_of(row, JobRun(step=RunStep.EJECT), ledger).step == "eject"


@pytest.mark.parametrize(
    ("state", "stage", "previous", "before", "after"),
    [
        (State.QUEUED, "", "", None, "queued"),
        (State.RUNNING, "", "queued", "queued", "queued"),
        (State.RUNNING, "provisioning", "queued", "queued", "provisioning"),
        (State.QUEUED, RESTING, "running:provisioning", "provisioning", "provisioning"),
        (State.FAILED, "", "running:failed", "failed", "complete"),
    ],
)
def test_an_event_shows_the_status_before_and_after_it(
    state: State, stage: str, previous: str, before: Status | None, after: Status
) -> None:
    event = Event("j", 1, 0, "info", "advance", state, stage, previous, 1, "", "", None, None)
    assert (status_before(event), status_after(event)) == (before, after)


def test_every_status_has_topics_by_which_jobs_are_listed_and_reported() -> None:
    assert sorted(topic for topics in TOPICS.values() for topic in topics) == [
        "cancelled", "failed", "queued", "running:failed", "running:provisioning", "running:succeeded", "succeeded",
    ]  # fmt: skip
