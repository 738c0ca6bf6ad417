"""Insert and eject images of virtual drives, with whatever payload the BMC accepts.

Both are idempotent: read the state, request only what is needed, and read again. So they can be repeated after a timeout.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from chargehand.doors.provisioning.redfish.client import RedfishClient
from chargehand.doors.provisioning.redfish.errors import RedfishError, RedfishRefused
from chargehand.doors.provisioning.redfish.facts import VirtualDrive
from chargehand.doors.provisioning.redfish.resources import RedfishAction, action, text
from chargehand.doors.provisioning.redfish.transport import RedfishAnswer

INSERT = "VirtualMedia.InsertMedia"
EJECT = "VirtualMedia.EjectMedia"
LOOK_SECONDS = 10.0  # how long a BMC may take to show a change that it accepted

Same = Callable[[str, str], bool]
Keys = frozenset[str]

_IMAGE = frozenset({"Image"})
_TRANSFER = frozenset({"TransferProtocolType"})
_STREAM = frozenset({"TransferMethod"})
_FLAGS = frozenset({"Inserted", "WriteProtected"})
_USER = frozenset({"UserName", "Password"})
# The smallest payload first: the standard requires only the image, and BMCs refuse unknown parameters.
POSTED: Sequence[Keys] = (
    _IMAGE,
    _IMAGE | _TRANSFER,
    _IMAGE | _TRANSFER | _STREAM,
    _IMAGE | _FLAGS,
    _IMAGE | _FLAGS | _TRANSFER | _STREAM,
    _IMAGE | _TRANSFER | _STREAM | _USER,
)
# Without an action, a PATCH with "Inserted" makes the drive load the image.
PATCHED: Sequence[Keys] = (_IMAGE | {"Inserted"}, _IMAGE | _FLAGS, _IMAGE, _IMAGE | {"Inserted"} | _TRANSFER)
EMPTIED: Sequence[dict[str, Any]] = ({"Image": None, "Inserted": False}, {"Image": None}, {"Inserted": False})

_OTHER_WORDS = (400, 415, 422)
_NO_ACTION = (404, 405, 501)


class Shown(msgspec.Struct, frozen=True):
    """The state of a drive, as the BMC shows it."""

    inserted: bool
    image: str

    @classmethod
    def of(cls, answer: RedfishAnswer) -> "Shown":
        image = text(answer.data, "Image")
        flag = answer.data.get("Inserted")
        return cls(flag if isinstance(flag, bool) else bool(image), image)


class VirtualMedia:
    def __init__(self, client: RedfishClient) -> None:
        self._client = client
        self._liked: dict[str, Keys] = {}  # by method: the payload that this BMC accepted last

    async def insert(self, slot: VirtualDrive, url: str, same: Same) -> str:
        """Insert the image; return the image that had to be ejected, or ""."""
        displaced = ""
        self._client.hide(url, "the image")

        def arrived(now: Shown) -> bool:
            return now.inserted and (same(now.image, url) or _abbreviates(now.image, url))

        async def ask(member: RedfishAnswer) -> None:
            nonlocal displaced
            if (now := Shown.of(member)).inserted:
                displaced = displaced or now.image.partition("?")[0] or "an image without a name"
                await self._take_out(member)
                if not await self._shows(slot, lambda now: not now.inserted):
                    raise RedfishError(f"{slot.name} accepted the eject, but still shows the old image", transient=True)
                member = await self._client.get(slot.path)
            await self._put_in(member, url)

        def there(now: Shown) -> bool:
            return now.inserted and same(now.image, url)

        await self._until(slot, there, ask, arrived, f"{slot.name} accepted the image, but does not show it")
        return "" if _abbreviates(displaced, url) else displaced

    async def eject(self, slot: VirtualDrive, only: Callable[[str], bool] | None) -> bool:
        found = False

        def gone(now: Shown) -> bool:
            return not now.inserted or (only is not None and not only(now.image))

        async def ask(member: RedfishAnswer) -> None:
            nonlocal found
            found = True
            self._client.hide(text(member.data, "Image"), "the image")
            await self._take_out(member)

        await self._until(slot, gone, ask, gone, f"{slot.name} accepted the eject, but still shows the image")
        return found

    async def _until(
        self,
        slot: VirtualDrive,
        already: Callable[[Shown], bool],
        ask: Callable[[RedfishAnswer], Awaitable[None]],
        done: Callable[[Shown], bool],
        problem: str,
    ) -> None:
        """Repeat the request until the drive's state is as wanted; when the time is over, raise the last error."""
        while True:
            asked = False
            try:
                member = await self._client.get(slot.path)
                if already(Shown.of(member)):
                    return
                asked = True
                await ask(member)
                trouble = RedfishError(problem, transient=True)
            except RedfishError as error:
                if not error.transient:
                    raise
                trouble = error
            if asked:
                already = done
                # It was accepted, or there was no answer and it may still be in progress: both show after a while.
                if not trouble.status and await self._shows(slot, done):
                    return
            if not await self._client.patience.pause(trouble.retry_after_seconds):
                raise trouble

    async def _shows(self, slot: VirtualDrive, so: Callable[[Shown], bool]) -> bool:
        patience = self._client.patience.within(LOOK_SECONDS)
        while not so(Shown.of(await self._client.get(slot.path))):
            if not await patience.pause():
                return False
        return True

    # asking -----------------------------------------------------------------------------------------------------------

    async def _put_in(self, member: RedfishAnswer, url: str) -> None:
        offered = await action(self._client, member.data, INSERT)
        if offered is not None:
            try:
                return await self._negotiate(
                    "POST", POSTED, offered, url, lambda body: self._client.post(offered.target, body)
                )
            except RedfishRefused as error:
                if error.status not in _NO_ACTION:
                    raise
        return await self._negotiate("PATCH", PATCHED, None, url, lambda body: self._client.patch(member, body))

    async def _negotiate(
        self,
        method: str,
        rungs: Sequence[Keys],
        offered: RedfishAction | None,
        url: str,
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Try payloads until the BMC accepts one; parameters that it names as missing or unwanted come before our own order."""
        values = _values(url, offered)
        known = frozenset(values)
        first = self._liked.get(method) or (rungs[0] | (offered.required & known if offered else frozenset()))
        waiting = [first, *(rung for rung in rungs if rung != first)]
        tried: set[Keys] = set()
        refused: RedfishRefused | None = None
        while waiting:
            keys = waiting.pop(0)
            if keys in tried:
                continue
            tried.add(keys)
            try:
                await send({key: values[key] for key in values if key in keys})
            except RedfishRefused as error:
                if error.status not in _OTHER_WORDS:
                    raise
                refused = refused or error
                missing, unwanted = error.said.blames(known)
                if (missing | unwanted) - _IMAGE:
                    waiting.insert(0, (keys | missing) - (unwanted - _IMAGE))
                elif error.said.about_image or missing | unwanted:
                    raise
            else:
                self._liked[method] = keys
                return
        raise refused or RedfishRefused("the BMC offers no way to insert an image")

    async def _take_out(self, member: RedfishAnswer) -> None:
        offered = await action(self._client, member.data, EJECT)
        if offered is not None:
            try:
                return await _any_of((None, {}), lambda body: self._client.post(offered.target, body))
            except RedfishRefused as error:
                if error.status not in _NO_ACTION:
                    raise
        return await _any_of(EMPTIED, lambda body: self._client.patch(member, body))


async def _any_of(bodies: Sequence[Any], send: Callable[[Any], Awaitable[None]]) -> None:
    refused: RedfishRefused | None = None
    for body in bodies:
        try:
            await send(body)
            return
        except RedfishRefused as error:
            if error.status not in _OTHER_WORDS:
                raise
            refused = refused or error
    raise refused or RedfishRefused("the BMC offers no way to eject")


def _values(url: str, offered: RedfishAction | None) -> dict[str, Any]:
    """Return all possible parameters for an image, in a fixed order."""
    allowed = offered.allowed if offered else {}
    methods = allowed.get("TransferMethod", ())
    return {
        "Image": url,
        "TransferProtocolType": urlsplit(url).scheme.upper(),
        "TransferMethod": methods[0] if methods and "Stream" not in methods else "Stream",
        "Inserted": True,
        "WriteProtected": True,
        "UserName": "",
        "Password": "",
    }


def _abbreviates(shown: str, url: str) -> bool:
    """Does the BMC show only the file's name, or nothing? Right after we inserted the image, that is enough."""
    path = urlsplit(url).path
    return not shown or (len(shown) < len(url) and shown.rpartition("/")[2] == path.rpartition("/")[2])
