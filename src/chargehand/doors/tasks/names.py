"""The words of the tasks door: its kind, its paths, its scopes, and how commands become queues."""

from chargehand.engine.job import queue_name

KIND = "task"
BASE = "/v1/codeq"
TAG = "tasks"
ANY = "*"

# What a worker may do, one scope a verb; codeQ's own names.
CLAIM = "codeq:claim"
HEARTBEAT = "codeq:heartbeat"
ABANDON = "codeq:abandon"
NACK = "codeq:nack"
RESULT = "codeq:result"
SUBSCRIBE = "codeq:subscribe"
WORKER_SCOPES = frozenset({CLAIM, HEARTBEAT, ABANDON, NACK, RESULT, SUBSCRIBE})

PRODUCE = "codeq:produce"  # ours: codeQ tells producers from workers by who signed the token
ADMIN = "codeq:admin"
ALL_TENANTS = "codeq:all-tenants"  # ours: a fleet that works for everybody, each tenant in turn

MAX_COMMAND = 200


def task_queue(tenant: str, command: str) -> str:
    """Spelling does not matter to codeQ's queues, so it does not to ours."""
    return queue_name(KIND, tenant, command.strip().lower())
