"""How the commands reach a server: the same HTTP API that everybody uses, in one place."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from chargehand.client import ClientError
from chargehand.client.transport.http import HttpTransport, may_have_been_done
from chargehand.client.transport.sse import Events, TooLong
from chargehand.commands.refusals import LOOK, explain

T = TypeVar("T")
Json = dict[str, Any]

RETRIES = 2  # a person waits
SILENCE_SECONDS = 45.0  # a job may have nothing to say for long; a new connection then costs nothing


class Line(HttpTransport):
    """Knows whether anything may have been done by any call of a command: the last may be a look that finds nobody there."""

    unsure = False

    async def _once(self, method: str, *rest: Any) -> tuple[int, bytes]:
        in_doubt = method != "GET"
        try:
            return await super()._once(method, *rest)
        except ClientError as error:
            in_doubt = in_doubt and may_have_been_done(error)
            raise
        finally:
            self.unsure = self.unsure or in_doubt


class Api:
    """Calls of one server."""

    def __init__(self, url: str, token: str, *, retries: int = RETRIES) -> None:
        self.url = url
        self._http = Line(url, token, retries=retries)

    @property
    def unsure(self) -> bool:
        return self._http.unsure

    async def close(self) -> None:
        await self._http.close()

    async def get(self, path: str, query: Mapping[str, str] = {}, *, retries: int | None = None) -> Json:
        return await self.call("GET", path, query=query, safe=True, retries=retries)

    async def post(self, path: str, body: Any = None, *, safe: bool = False, headers: Mapping[str, str] = {}) -> Json:
        return await self.call("POST", path, body, safe=safe, headers=headers)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        safe: bool,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        retries: int | None = None,
    ) -> Json:
        _, told = await self._http.call(method, path, body, safe=safe, query=query, headers=headers, retries=retries)
        try:
            return msgspec.json.decode(told, type=Json) if told else {}
        except msgspec.DecodeError as error:
            raise ClientError(502, "this is not an answer of a Chargehand", str(error)) from None

    async def follow(self, path: str, after: int) -> AsyncIterator[Json]:
        """The data of server-sent events, until the stream ends or nothing came for so long that the server may be gone."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        events = Events()
        async with self._http.stream(path, None, 2 * SILENCE_SECONDS, headers=headers) as answer:
            while True:
                try:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        arrived = await answer.content.readany()
                except TimeoutError:
                    return
                if not arrived:
                    return
                try:
                    found = [msgspec.json.decode(sent.data, type=Json) for sent in events.read(arrived)]
                except (msgspec.DecodeError, TooLong) as error:
                    raise ClientError(502, "this is not a stream of events of a job", str(error)) from None
                for event in found:
                    yield event


def ask(
    url: str,
    token: str,
    do: Callable[[Api], Awaitable[T]],
    *,
    how_to_list: str = "",
    in_doubt: str = LOOK,
    facts: Mapping[str, str] = {},
) -> T:
    """What comes of it; a refusal of the server ends the command, and `in_doubt` says what to do where it may have been done."""
    api = Api(url, token)

    async def asked() -> T:
        try:
            return await do(api)
        finally:
            await api.close()

    try:
        return asyncio.run(asked())
    except ClientError as error:
        explain(error, url, token, how_to_list, in_doubt=in_doubt if api.unsure else "", facts=facts)
