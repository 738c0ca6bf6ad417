"""Every request in which a caller gives the server a URL to call."""

from typing import Any

from chargehand.doors.tasks.names import BASE
from tests.provisioning.lab import RECIPE, SERIAL

# Method, path and body; `URL` is the placeholder for the URL.
DOORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "engine": ("POST", "/engine/jobs", {"queue": "q", "payload": 1, "webhook": {"url": "URL"}}),
    "models": ("POST", "/jobs", {"model": "tiny-stories", "prompt": "Hello", "state_webhook_url": "URL"}),
    # Before the tasks: it is notified when its queue receives work.
    "subscription": ("POST", f"{BASE}/workers/subscriptions", {"callbackUrl": "URL", "eventTypes": ["c"]}),
    "task": ("POST", f"{BASE}/tasks", {"command": "c", "payload": 1, "webhook": "URL"}),
    "tasks": ("POST", f"{BASE}/tasks/batch", {"tasks": [{"command": "c", "payload": 1, "webhook": "URL"}]}),
    "schedule": (
        "POST",
        f"{BASE}/schedules",
        {"name": "n", "cron": "@daily", "command": "c", "payload": 1, "webhook": "URL"},
    ),
    "machines": (
        "POST",
        "/api/v1/jobs",
        {"server_serial": SERIAL, "recipe": RECIPE, "webhook": {"url": "URL"}},
    ),
}


def filled(body: Any, url: str) -> Any:
    if isinstance(body, dict):
        return {name: filled(value, url) for name, value in body.items()}
    if isinstance(body, list):
        return [filled(each, url) for each in body]
    return url if body == "URL" else body
