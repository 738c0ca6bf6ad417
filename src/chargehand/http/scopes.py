"""All scopes of tokens and what each allows. `docs/reference/scopes.md` is generated from this table."""

SCOPES: dict[str, str] = {
    "jobs:read": "reading jobs, events, artifacts, files, batches, queues, deliveries, endpoints, chores, targets and what models there are",
    "jobs:write": "submitting, cancelling and requeueing jobs; asking models; files and batches",
    "work": "claiming jobs of the engine's own API, beating, finishing them",
    "admin": "settings of queues, replaying deliveries, pausing endpoints; pulling, creating, copying and deleting models",
    "metrics": "`/metrics`",
    "codeq:produce": "creating tasks and cancelling them, schedules, reading tasks and results",
    "codeq:claim": "claiming tasks, one by one, in batches or as a stream",
    "codeq:heartbeat": "extending the lease of a task, and telling its progress",
    "codeq:abandon": "giving a task back without blame",
    "codeq:nack": "giving a task back with a reason",
    "codeq:result": "handing in the result of a task",
    "codeq:subscribe": "subscribing to notifications, renewing and ending subscriptions",
    "codeq:admin": "counts, pausing and limiting commands, dead letters, topics, cleanup; and what a producer may",
    "codeq:all-tenants": "beside a worker's scopes: claiming tasks of all tenants in turn",
    "provision:read": "looking at provisioning jobs, their events and servers; validating recipes",
    "provision:write": "submitting, cancelling and retrying provisioning jobs",
    "provision:servers": "registering, changing, probing and forgetting servers",
    "registry:pull": "reading from the registry of images",
    "registry:push": "writing to it and deleting from it",
}
