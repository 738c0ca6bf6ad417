"""The names of the tasks door: its kind, its paths, its scopes, and the queue of a command."""

from chargehand.engine.queue import Queue

KIND = "task"
BASE = "/v1/codeq"
TAG = "tasks"
ANY = "*"

# What a worker may do, one scope for each verb, as in codeQ.
CLAIM = "codeq:claim"
HEARTBEAT = "codeq:heartbeat"
ABANDON = "codeq:abandon"
NACK = "codeq:nack"
RESULT = "codeq:result"
SUBSCRIBE = "codeq:subscribe"
WORKER_SCOPES = frozenset({CLAIM, HEARTBEAT, ABANDON, NACK, RESULT, SUBSCRIBE})

PRODUCE = "codeq:produce"  # ours: codeQ distinguishes producers and workers by the token's issuer
ADMIN = "codeq:admin"
ALL_TENANTS = "codeq:all-tenants"  # ours: a fleet of workers that serves every tenant in turn

MAX_COMMAND = 200


def queue_name(command: str) -> str:
    """Ignore upper and lower case, as codeQ's queues do."""
    return command.strip().lower()


def task_queue(tenant: str, command: str) -> Queue:
    return Queue(KIND, tenant, queue_name(command))
