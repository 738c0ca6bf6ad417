"""The Python client: `Client` for calls, `Worker` for work, `verify_webhook` for what the server sends."""

from chargehand.client.attempt import TaskEnded
from chargehand.client.client import Client
from chargehand.client.errors import ClientError, Fail, Retry
from chargehand.client.held import Held
from chargehand.client.provisioning import Provisioning
from chargehand.client.webhook import verify_webhook
from chargehand.client.wire import Artifact, Created, Nacked, NewTask, Result, Subscription, Task
from chargehand.client.worker import Worker
from chargehand.webhooks.signature import SignatureError

__all__ = [
    "Artifact",
    "Client",
    "ClientError",
    "Created",
    "Fail",
    "Held",
    "Nacked",
    "NewTask",
    "Provisioning",
    "Result",
    "Retry",
    "SignatureError",
    "Subscription",
    "Task",
    "TaskEnded",
    "Worker",
    "verify_webhook",
]
