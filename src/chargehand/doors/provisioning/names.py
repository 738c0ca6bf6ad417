"""The names of the provisioning door: its kind, its paths, its scopes, its queues."""

import re

from chargehand.engine.queue import Queue, Queues

KIND = "provision"
BASE = "/api/v1"
TAG = "provisioning"

READ = "provision:read"
WRITE = "provision:write"  # jobs: submit, cancel, retry
SERVERS = "provision:servers"  # who may say which machines there are, and with which password their BMC opens
PULL = "registry:pull"
PUSH = "registry:push"

QUEUES = Queues(KIND)  # of all servers of all tenants

SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")  # safe in a path, in a header and on a screen


def server_queue(tenant: str, serial: str) -> Queue:
    """A queue for each server: its jobs are found by it, and a paused queue is a server that is left alone."""
    return Queue(KIND, tenant, serial)
