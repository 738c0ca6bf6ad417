"""The gRPC server of the tasks door: listens beside HTTP, with the same certificate, and ends all streams when the server stops."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from chargehand.config import Config, ServerConfig
from chargehand.doors.tasks.grpc.conversation import Conversation, Known, Message, Speaker
from chargehand.doors.tasks.grpc.messages import Wire
from chargehand.errors import ConfigError

MAX_STREAMS = 10_000
METHOD = "Stream"

MakeSpeaker = Callable[[], Speaker]


class GrpcServer:
    def __init__(self, config: Config, services: Sequence[tuple[Wire, MakeSpeaker]]) -> None:
        self._config = config
        self._services = services
        self._open: set[Conversation] = set()
        self._server: Any = None
        self.address = ""

    async def start(self, known: Known, *, shared: bool) -> None:
        """Listen. `shared`: other processes of this server listen on the same port."""
        bound = self._config.server.max_body_bytes
        self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", int(shared)),
                ("grpc.max_receive_message_length", bound),
                ("grpc.max_send_message_length", -1),
            ),
            maximum_concurrent_rpcs=MAX_STREAMS,
        )
        for words, make in self._services:
            self._server.add_generic_rpc_handlers((self._handler(words, make, known),))
        listen = self._config.tasks.grpc_listen
        try:
            port = self._listen(listen)
        except RuntimeError:
            raise ConfigError(f"tasks.grpc_listen: {listen} cannot be listened on; is it already in use?") from None
        self.address = f"{listen.rpartition(':')[0]}:{port}"
        await self._server.start()

    def _listen(self, listen: str) -> int:
        if not self._config.server.tls_certificate:
            return int(self._server.add_insecure_port(listen))
        return int(self._server.add_secure_port(listen, _credentials(self._config.server)))

    async def close(self, seconds: float) -> None:
        if self._server is None:
            return
        for conversation in self._open:
            conversation.stop()
        await self._server.stop(seconds)

    def _handler(self, words: Wire, make: MakeSpeaker, known: Known) -> Any:
        async def stream(events: AsyncIterator[Message], context: Any) -> AsyncGenerator[Message, None]:
            conversation = Conversation(make(), known)
            self._open.add(conversation)
            try:
                async with contextlib.aclosing(conversation.run(events, context)) as answers:
                    async for answer in answers:
                        yield answer
            finally:
                self._open.discard(conversation)

        method = grpc.stream_stream_rpc_method_handler(
            stream, words.Asked.FromString, lambda message: message.SerializeToString()
        )
        return grpc.method_handlers_generic_handler(words.service, {METHOD: method})


def _credentials(server: ServerConfig) -> Any:
    """Read the certificate at each handshake, so that a renewal needs no restart."""

    def read() -> Any:
        pair = Path(server.tls_key).read_bytes(), Path(server.tls_certificate).read_bytes()
        return grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(read(), read)
