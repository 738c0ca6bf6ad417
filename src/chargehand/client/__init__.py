"""The Python client: `Client` and `AsyncClient` for calls, `Worker` for tasks, `verify_webhook` for receivers of webhooks."""

from chargehand.client.blocking import Client
from chargehand.client.client import AsyncClient
from chargehand.client.errors import (
    BadRequest,
    Busy,
    ClientError,
    Conflict,
    Fail,
    Forbidden,
    JobFailed,
    NoAnswer,
    NotDone,
    NotFound,
    Retry,
    ServerFault,
    Unauthenticated,
)
from chargehand.client.types.inference import Token, Wish
from chargehand.client.types.tasks import Created, Nacked, NewTask, Result, Task, TaskArtifact, WorkerSubscription
from chargehand.client.webhook import verify_webhook
from chargehand.client.worker.attempt import TaskEnded
from chargehand.client.worker.held import Held
from chargehand.client.worker.worker import Worker
from chargehand.webhooks.signature import SignatureError

__all__ = [
    "AsyncClient",
    "BadRequest",
    "Busy",
    "Client",
    "ClientError",
    "Conflict",
    "Created",
    "Fail",
    "Forbidden",
    "Held",
    "JobFailed",
    "Nacked",
    "NewTask",
    "NoAnswer",
    "NotDone",
    "NotFound",
    "Result",
    "Retry",
    "ServerFault",
    "SignatureError",
    "Task",
    "TaskArtifact",
    "TaskEnded",
    "Token",
    "Unauthenticated",
    "Wish",
    "Worker",
    "WorkerSubscription",
    "verify_webhook",
]
