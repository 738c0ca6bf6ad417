"""Calls to the controller: progress reports, whose answers say whether to go on, and the final report."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from provision.errors import Exit, ToldToStop, Trouble
from provision.journal import Secrets, say
from provision.places import Places
from provision.wire import Answer, ask, trust

REPORT = "report.json"
AUTHORITIES = "ca.pem"  # authorities to trust in addition to the public ones
PERMITTED = "permitted"  # the controller permitted this boot to work
STOPPED = "stopped"  # the controller refused or withdrew its permission

_MEMBERS = ("job_id", "server_serial", "status_url", "progress_url", "token")


class Controller:
    def __init__(self, places: Places, report: Mapping[str, Any]) -> None:
        self._places = places
        self._report = report
        self._boot_id = places.boot_id()

    @classmethod
    def of(cls, places: Places) -> "Controller | None":
        """Return the controller of the task; None if no task was found."""
        report = places.read(REPORT)
        return None if report is None else cls(places, report)

    def progress(self, said: Mapping[str, Any], timeout: float = 10.0) -> None:
        """Report progress. Raise ToldToStop if nothing more may be done, OSError if there was no answer."""
        body = {**said, "boot_id": self._boot_id, "job_id": self._report["job_id"]}
        answer = self._post(self._report["progress_url"], body, timeout)
        if answer.status == 409:
            self.stop(str(_document(answer).get("reason", "it gives no reason")))
        if answer.status >= 300:
            raise ConnectionError(f"the controller answered {answer.status}")

    def may_begin(self, said: Mapping[str, Any], seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Ask for permission before anything is written, or raise. No answer means no: the work would go unreported."""
        limit = time.monotonic() + seconds
        wait = 0.5
        while True:
            try:
                self.progress(said)
            except OSError as error:
                reason = str(getattr(error, "reason", "") or error) or type(error).__name__
            else:
                self._places.write(PERMITTED, b"")
                return
            if time.monotonic() + wait > limit:
                raise Trouble(
                    f"the controller did not let this machine begin within {seconds:g} seconds: {reason}",
                    Exit.UNREACHABLE,
                )
            say(f"asking the controller again: {reason}")
            sleep(wait)
            wait = min(10.0, wait * 2)

    def status(self, said: Mapping[str, Any]) -> int:
        return self._post(self._report["status_url"], {**said, "job_id": self._report["job_id"]}, 10.0).status

    def stop(self, reason: str) -> None:
        self._places.write(STOPPED, reason.encode())
        raise ToldToStop(reason)

    def _post(self, url: str, body: Mapping[str, Any], timeout: float) -> Answer:
        headers = {"Content-Type": "application/json"}
        return ask(url, headers, self._report["token"], json.dumps(body).encode(), timeout)


def read_report(files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        report = json.loads(files[REPORT])
        if any(not isinstance(report[name], str) or not report[name] for name in _MEMBERS):
            raise ValueError("a member is empty")
        if any(not report[name].startswith(("http://", "https://")) for name in ("status_url", "progress_url")):
            raise ValueError("not a URL")
    except (KeyError, ValueError, TypeError):
        raise Trouble(f"the task medium has no {REPORT} that can be used", Exit.MEDIUM_UNREADABLE) from None
    return dict(report)


def keep_authorities(places: Places, files: Mapping[str, bytes]) -> None:
    if AUTHORITIES in files:
        places.write(AUTHORITIES, files[AUTHORITIES])
    try:
        trust_authorities(places)
    except Trouble:
        places.forget(AUTHORITIES)  # else a failure could not be reported
        raise


def trust_authorities(places: Places) -> None:
    if not places.has(AUTHORITIES):
        return
    try:
        trust(places.run / AUTHORITIES)
    except ValueError as error:
        raise Trouble(str(error), Exit.MEDIUM_UNREADABLE) from None


def secrets(places: Places) -> Secrets:
    """Return what must not leave the machine in the end of a log: the token, the recipe's variables, and every line of its files."""
    report, recipe = places.read(REPORT) or {}, places.read("recipe.json") or {}
    words = [str(report.get("token", "")), *map(str, recipe.get("env", {}).values())]
    _, mark, query = str(recipe.get("firmware_url", "")).partition("?")
    words += [query] if mark else []
    lines: list[str] = []
    for name in ("user-data", "network-config", "unattend.xml"):
        if places.has(name):
            lines += (places.run / name).read_text(errors="replace").splitlines()
    return Secrets(words, lines)


def _document(answer: Answer) -> dict[str, Any]:
    try:
        document = json.loads(answer.body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
