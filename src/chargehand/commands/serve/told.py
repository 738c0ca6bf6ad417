"""What the parent of several processes says to each of them, as a line of JSON. It has read the settings, once for all: a file that
changes later makes no two kinds of nodes.
"""

from typing import Self

import msgspec

from chargehand.config import Config
from chargehand.config.settings import wrap
from chargehand.observability.logs import Format


class Told(msgspec.Struct, frozen=True):
    config: Config
    number: int  # of this process: 1 to config.server.processes
    folder: str  # where the sockets of all of them are
    listening: tuple[int, ...]  # descriptors
    log_format: Format
    as_json: bool

    def encoded(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=lambda secret: secret.reveal()) + b"\n"

    @classmethod
    def decoded(cls, line: bytes) -> Self:
        return msgspec.json.decode(line, type=cls, dec_hook=wrap)
