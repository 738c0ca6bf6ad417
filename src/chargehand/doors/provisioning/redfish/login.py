"""Authentication at a BMC: a session, so that it checks the password once and not for every request.

A BMC without sessions, or with no free one, gets the password with each request (Basic). Some BMCs have only four sessions,
so every one that is created here is kept track of until it is deleted.
"""

import asyncio
from base64 import b64encode
from collections.abc import Mapping

from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused, RedfishUnreachable
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.transport import RedfishAnswer, RedfishTransport

ROOT = "/redfish/v1/"
CLOSE_SECONDS = 3.0
_NOT_NOW = (429, 503)


class Login:
    def __init__(self, bmc: Bmc, transport: RedfishTransport) -> None:
        self._bmc = bmc
        self._transport = transport
        self._token = ""
        self._made: list[tuple[str, str]] = []  # (token, path) of every session that may still exist
        self._basic = not (bmc.username or bmc.password)

    async def headers(self, root: RedfishAnswer) -> Mapping[str, str]:
        """Return the headers for a request; create a session if necessary."""
        if not self._token and not self._basic:
            await self._open(root)
        return {"X-Auth-Token": self._token} if self._token else self.basic()

    def basic(self) -> Mapping[str, str]:
        if not (self._bmc.username or self._bmc.password):
            return {}
        pair = f"{self._bmc.username}:{self._bmc.password}".encode()
        return {"Authorization": "Basic " + b64encode(pair).decode("ascii")}

    def expired(self) -> bool:
        """The BMC answered 401: drop the session and return True if there was one, so that a new one may help."""
        had, self._token = self._token, ""
        return bool(had)

    async def close(self) -> None:
        """Delete every session, within a short time: an unreachable BMC expires them by itself."""
        made, self._made, self._token = self._made, [], ""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for token, path in reversed(made):
                    await self._transport.ask("DELETE", path, headers={"X-Auth-Token": token})
        except (TimeoutError, RedfishError):
            return

    async def _open(self, root: RedfishAnswer) -> None:
        path = await self._collection(root)
        if not path:
            self._basic = True
            return
        try:
            answer = await self._transport.ask(
                "POST", path, {"UserName": self._bmc.username, "Password": self._bmc.password}
            )
        except RedfishUnreachable as error:
            # It may have been created anyway, and then we cannot delete it: do not create a second one.
            self._basic = error.unclear
            error.unclear = False  # only the session was requested
            raise
        if answer.status == 401:
            raise bad_credentials()
        if answer.status in _NOT_NOW and not answer.said.has("SessionLimitExceeded"):
            raise RedfishUnreachable(
                f"the BMC cannot create a session now: it answered {answer.status}",
                status=answer.status,
                retry_after_seconds=answer.retry_after_seconds,
            )
        token = answer.headers.get("X-Auth-Token", "")
        if not answer.ok or not token:
            self._basic = True
            return
        self._transport.hide(token)
        self._token = token
        where = answer.headers.get("Location") or answer.data.get("@odata.id")
        if isinstance(where, str) and where:
            self._made.append((token, where))

    async def _collection(self, root: RedfishAnswer) -> str:
        links = root.data.get("Links")
        direct = _link(links.get("Sessions")) if isinstance(links, dict) else ""
        service = _link(root.data.get("SessionService"))
        if direct or not service:
            return direct
        answer = await self._transport.ask("GET", service, headers=self.basic())
        return _link(answer.data.get("Sessions")) if answer.ok else ""


def bad_credentials() -> RedfishRefused:
    return RedfishRefused("the BMC does not accept the user name and password on record", status=401)


def _link(value: object) -> str:
    link = value.get("@odata.id") if isinstance(value, dict) else None
    return link if isinstance(link, str) else ""
