"""The Python client: `Client` and `AsyncClient` for calls, `App` for tasks that are declared once and `Worker` for others, `verify_webhook`
for receivers of webhooks."""

from chargehand.client.blocking import Client
from chargehand.client.client import AsyncClient
from chargehand.client.declared.app import App
from chargehand.client.declared.declaration import Every
from chargehand.client.declared.flows import DeclaredFlow, Step, chain, group, join
from chargehand.client.declared.handler import current_task
from chargehand.client.declared.middleware import Middleware
from chargehand.client.declared.retries import Retries
from chargehand.client.declared.sent import SentFlow, SentTask
from chargehand.client.declared.task import BatchTask, DeclaredTask
from chargehand.client.declared.values import PayloadError
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
    SoftTimeLimit,
    Unauthenticated,
)
from chargehand.client.types.engine import RateOfStarts
from chargehand.client.types.flows import NewStep
from chargehand.client.types.inference import Token, Wish
from chargehand.client.types.schedules import KeyPolicy
from chargehand.client.types.tasks import Created, Nacked, NewTask, Result, Task, TaskArtifact, WorkerSubscription
from chargehand.client.webhook import verify_webhook
from chargehand.client.worker.attempt import TaskEnded
from chargehand.client.worker.held import Held
from chargehand.client.worker.worker import Worker
from chargehand.webhooks.signature import SignatureError

__all__ = [
    "App",
    "AsyncClient",
    "BadRequest",
    "BatchTask",
    "Busy",
    "Client",
    "ClientError",
    "Conflict",
    "Created",
    "DeclaredFlow",
    "DeclaredTask",
    "Every",
    "Fail",
    "Forbidden",
    "Held",
    "JobFailed",
    "KeyPolicy",
    "Middleware",
    "Nacked",
    "NewStep",
    "NewTask",
    "NoAnswer",
    "NotDone",
    "NotFound",
    "PayloadError",
    "RateOfStarts",
    "Result",
    "Retries",
    "Retry",
    "SentFlow",
    "SentTask",
    "ServerFault",
    "SignatureError",
    "SoftTimeLimit",
    "Step",
    "Task",
    "TaskArtifact",
    "TaskEnded",
    "Token",
    "Unauthenticated",
    "Wish",
    "Worker",
    "WorkerSubscription",
    "chain",
    "current_task",
    "group",
    "join",
    "verify_webhook",
]
