"""The metrics of this door, under codeQ's names, so that dashboards and alerts for codeQ keep working."""

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from chargehand.doors.tasks.names import ANY, KIND
from chargehand.doors.tasks.views import STATUS, command_of
from chargehand.engine.delivery import DeliveryState, Outgoing, Settle
from chargehand.engine.job import FINAL, SECOND, QueueCount
from chargehand.engine.moves import Moved
from chargehand.engine.queue import Queue
from chargehand.observability.tally import Tally, TallyCounter

_LATENCY = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
MAX_COMMANDS = 500  # callers invent commands, and each takes memory here and in Prometheus
OTHER = "other"
MAX_HELD = 1000  # beyond this a command is labelled in lower case, without looking its spelling up
PARTS = ("ready", "delayed", "in_progress", "dlq")


class TaskMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        r = registry
        # fmt: off
        self.created = TallyCounter("codeq_task_created_total", "Tasks created", ["command"], r)
        self.claimed = TallyCounter("codeq_task_claimed_total", "Tasks claimed", ["command"], r)
        self.completed = TallyCounter("codeq_task_completed_total", "Tasks that came to their end, by status", ["command", "status"], r)
        self.latency = Tally("codeq_task_processing_latency_seconds", "From creation to the end", ["command", "status"], _LATENCY, r)
        self.lease_expired = Counter("codeq_lease_expired_total", "Leases that ran out", ["command"], registry=r)
        self.webhooks = Counter("codeq_webhook_deliveries_total", "Notifications (queue_ready), callbacks (task_result)", ["kind", "command", "outcome"], registry=r)
        self.rate_limited = Counter("codeq_rate_limit_hits_total", "Requests over a rate limit", ["scope", "operation"], registry=r)
        self.depth = Gauge("codeq_queue_depth", "Tasks in a queue: ready, delayed, in_progress, dlq", ["command", "queue"], registry=r)
        self.dead = Gauge("codeq_dlq_depth", "Dead letters", ["command"], registry=r)
        self.subscriptions = Gauge("codeq_subscriptions_active", "Worker subscriptions that have not expired", ["command"], registry=r)
        # fmt: on
        self._names: dict[str, str] = {}  # a command in lower case -> as a producer first spelt it
        self._held: list[
            tuple[Queue, Callable[[str], None]]
        ] = []  # queues, and what to count once their label is known

    def spell(self, command: str) -> str:
        """Return the label of a command and remember how it is spelt: queues have it in lower case only."""
        command = command.strip()
        label = self._known(lower := command.lower())
        if label is None:
            label = self._names[lower] = command
            self._begin(label)
            held, self._held = self._held, []
            for queue, count in held:
                self._count(queue, count)
        return label

    def _known(self, lower: str) -> str | None:
        return self._names.get(lower) or (OTHER if len(self._names) >= MAX_COMMANDS else None)

    def _begin(self, command: str) -> None:
        """Create the counters with 0: Prometheus sees no increase in a series that begins with 1."""
        self.created.at(command)
        self.claimed.at(command)
        self.lease_expired.labels(command)
        for status in ("COMPLETED", "FAILED"):
            self.completed.at(command, status)

    def strange(self, counts: list[QueueCount]) -> list[Queue]:
        """Return queues whose spelling is unknown: their producers came before a restart, or to another node."""
        queues = [queue for queue, _ in self._held] + [count.queue for count in counts]
        return list({queue.name: queue for queue in queues if self._known(queue.name) is None}.values())

    def _count(self, queue: Queue, count: Callable[[str], None]) -> None:
        label = self._known(queue.name)
        if label is not None:
            count(label)
            return
        # A label cannot be changed later, and metrics are read only after `strange` was asked.
        self._held.append((queue, count))
        if len(self._held) >= MAX_HELD:
            self.spell(queue.name)

    def on_move(self, moved: Moved) -> None:
        if moved.kind == KIND and (moved.move in ("submit", "claim") or moved.state in FINAL):
            self._count(moved.queue, partial(self._count_move, moved))

    def _count_move(self, moved: Moved, command: str) -> None:
        if moved.move == "submit":
            self.created.at(command)()
        elif moved.move == "claim":
            self.claimed.at(command)()
        else:
            status = STATUS[moved.state]
            self.completed.at(command, status)()
            self.latency.at(command, status)((moved.at - moved.created_at) / SECOND)

    def on_lapse(self, moved: Moved) -> None:
        if moved.kind == KIND:
            self._count(moved.queue, lambda command: self.lease_expired.labels(command).inc())

    def on_settled(self, settle: Settle, outgoing: Outgoing) -> None:
        if outgoing.job.kind == KIND and settle.state is not DeliveryState.PENDING:
            self.spell(command_of(outgoing.job))
            outcome = "success" if settle.state is DeliveryState.DELIVERED else "failure"
            self.count_webhook("task_result", outgoing.job.queue, outcome)

    def count_webhook(self, kind: str, queue: Queue, outcome: str) -> None:
        def count(command: str) -> None:
            for each in ("success", "failure"):
                self.webhooks.labels(kind, command, each).inc(each == outcome)

        self._count(queue, count)

    def show(self, counts: list[QueueCount], dead: Mapping[Queue, int], active: Mapping[tuple[str, str], int]) -> None:
        """Set the gauges: the tenants of a command are added up."""
        depth: dict[tuple[str, str], int] = {}
        strange: set[str] = set()  # labelled in lower case until their spelling is looked up; bounded like the others

        def label(command: str) -> str:
            if (known := self._known(command)) is not None:
                return known
            if command not in strange and len(self._names) + len(strange) >= MAX_COMMANDS:
                return OTHER
            strange.add(command)
            return command

        def add(queue: Queue, part: str, count: int) -> None:
            key = label(queue.name), part
            depth[key] = depth.get(key, 0) + count

        for count in counts:
            add(count.queue, "ready", count.ready)
            add(count.queue, "delayed", count.delayed)
            add(count.queue, "in_progress", count.running)
        for queue, number in dead.items():
            add(queue, "dlq", number)
        self.depth.clear()
        self.dead.clear()
        # A queue that is empty now is shown as 0, so that an alert on it ends.
        for command in {*self._names.values(), *(command for command, _ in depth)}:
            for part in PARTS:
                self.depth.labels(command, part).set(depth.get((command, part), 0))
            self.dead.labels(command).set(depth.get((command, "dlq"), 0))
        self.subscriptions.clear()
        for (_, command), number in active.items():
            self.subscriptions.labels(command if command == ANY else label(command)).inc(number)
