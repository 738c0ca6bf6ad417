"""A live picture of a job on a terminal: its steps with their times, the steps to come, and the last events."""

from collections import deque
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chargehand.client.types.provisioning import Event, Job, StepProgress
from chargehand.commands.provision.job_text import stands, step_word
from chargehand.commands.text import between, clean, clock, lasted
from chargehand.doors.provisioning.job.run import RunStep as Known

PLAN = tuple(str(step) for step in Known if step is not Known.DONE)  # the steps of the controller, in order
WAIT = str(Known.WAIT)
SHOWN_EVENTS = 3
BAR = 24
STYLES = {"done": "green", "failed": "bold red", "running": "bold cyan", "stopped": "yellow", "": "dim"}
MARKS = {"done": "ok", "failed": "!!", "running": ">>", "stopped": "--", "": ""}


class Screen:
    def __init__(self, job: Job, console: Console | None = None) -> None:
        self.job = job
        self.away = ""  # why the server cannot be reached
        self._events: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self._live = Live(
            console=console or Console(stderr=True, highlight=False), refresh_per_second=4, get_renderable=self.picture
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def heard(self, event: Event) -> None:
        step, message = clean(event.step), clean(event.message)
        self._events.append("  ".join([clock(event.time), *([] if message.startswith(step) else [step]), message]))

    def picture(self) -> RenderableType:
        """Text without markup: nothing that a machine says can draw."""
        job = self.job
        parts: list[RenderableType] = [self._head(job), _overall(job), _steps(job)]
        if not job.finished:  # of a finished job they are printed below, with what to do
            parts += [Text(f"warning: {clean(text)}", style="yellow") for text in job.warnings]
        parts += [Text(f"  {line}", style="dim", overflow="ellipsis", no_wrap=True) for line in self._events]
        if self.away:
            parts.append(Text(f"the server is away ({self.away}); the job is safe, trying again", style="yellow"))
        return Group(*parts)

    def _head(self, job: Job) -> Text:
        head = Text(f"{job.server_serial}  {job.task_target}  ", style="bold", overflow="ellipsis", no_wrap=True)
        head.append(
            stands(job), style=STYLES.get({"succeeded": "done", "failed": "failed"}.get(job.outcome or "", "running"))
        )
        head.append(f"  {lasted(between(job.created_at, job.finished_at))}", style="none")
        for key, at in job.deadlines.items():
            head.append(f"  until {clock(at)} ({key})", style="dim")
        return head


def _overall(job: Job) -> RenderableType:
    done = len({step.step for step in job.progress.steps if step.where == "controller" and step.ended_at})
    total = len(PLAN)
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total, total if job.finished else done, width=BAR), Text(job.job_id, style="dim"))
    return line


def _steps(job: Job) -> Table:
    """The machine's steps are shown under the step in which the controller waits for it."""
    table = Table.grid(padding=(0, 1))
    begun = [step for step in job.progress.steps if step.where == "controller"]
    machine = [step for step in job.progress.steps if step.where != "controller"]
    for step in begun:
        _row(table, step, job)
        if step.step == WAIT:
            for each in machine:
                _row(table, each, job, "  ")
            machine = []
    for each in machine:  # a machine that reported before the controller waited for it
        _row(table, each, job, "  ")
    seen = {step.step for step in begun}
    if not job.finished:
        for name in PLAN:
            if name not in seen:
                table.add_row("", Text(name, style="dim"), "", "", "")
    return table


def _row(table: Table, step: StepProgress, job: Job, indent: str = "") -> None:
    word = step_word(step, job)
    style = STYLES[word]
    seconds = step.seconds if step.seconds is not None else None if job.outcome else between(step.began_at, None)
    running = word == "running" and step.percent is not None
    bar: RenderableType = ProgressBar(100, step.percent or 0, width=BAR) if running else ""
    said = f"{step.percent:.0f} % " if running else ""
    table.add_row(
        Text(MARKS[word], style=style),
        Text(indent + clean(step.step), style=style),
        Text("" if seconds is None else lasted(seconds), justify="right"),
        bar,
        Text(said + clean(step.message), style="dim", overflow="ellipsis", no_wrap=True),
    )
