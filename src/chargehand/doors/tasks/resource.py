"""The HTTP face of a task: what all doors do with a job, in codeQ's words."""

from chargehand.config import TasksConfig
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.names import BASE, KIND
from chargehand.doors.tasks.views import event_name, task_event
from chargehand.doors.tasks.wire import checked_url
from chargehand.engine.engine import Engine
from chargehand.engine.job import Job
from chargehand.http.jobs import JobResource, WebhookRetries, Wording
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy

ENDS = ("succeeded", "failed", "cancelled")


def task_resource(engine: Engine, config: TasksConfig, tracing: Tracing, policy: EgressPolicy) -> JobResource:
    wording = Wording(
        kind=KIND,
        noun="task",
        path=f"{BASE}/tasks",
        event_view=task_event,
        event_name=event_name,
        dialect="codeq",
        retries=WebhookRetries(
            config.result_webhook_max_attempts,
            config.result_webhook_base_backoff_seconds,
            config.result_webhook_max_backoff_seconds,
        ),
    )
    return JobResource(
        engine, wording, tracing, lambda field, url: checked_url(policy, field, url, "invalid webhook url")
    )


async def get_task(jobs: JobResource, task_id: str, tenant: str | None, text: str = "not found") -> Job:
    """Return the tenant's task, else refuse with 404 and this text. A malformed id is not found either."""
    job = await jobs.find(task_id, tenant)
    if job is None:
        raise TaskRefused(404, text)
    return job
