"""The names of the provisioning door: its kind, its paths, its scopes, its queues."""

import re

from chargehand.engine.queue import Queue, Queues

KIND = "provision"
BASE = "/api/v1"
TAG = "provisioning"

READ = "provision:read"
WRITE = "provision:write"  # jobs: submit, cancel, retry
SERVERS = "provision:servers"  # register and change servers, with the passwords of their BMCs
PULL = "registry:pull"
PUSH = "registry:push"

SERVER_RECORD = "server"  # the kind of a server's record
QUEUES = Queues(KIND)  # of all servers of all tenants

SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")  # safe in a path, in a header and on a screen


def server_queue(tenant: str, serial: str) -> Queue:
    """Return the server's own queue: it finds the server's jobs, and while it is paused none of them starts."""
    return Queue(KIND, tenant, serial)
