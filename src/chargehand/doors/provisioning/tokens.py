"""The token of a job: only the job's machine has it, and it allows only that job's reports and image pulls.

It is derived from the server's key, so it is not stored, and a task medium that is built again after a restart is the same.
"""

import base64
import hmac
from typing import NamedTuple

from chargehand.engine.ids import is_ulid

PREFIX = "cht_"


class Meant(NamedTuple):
    job_id: str
    generation: int


class JobTokens:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, job_id: str, generation: int) -> str:
        mac = hmac.digest(self._key, f"{job_id}.{generation}".encode(), "sha256")[:24]
        return f"{PREFIX}{job_id}.{generation}.{base64.urlsafe_b64encode(mac).decode()}"

    def read(self, token: str) -> Meant | None:
        """Return the job and the start that the token is for; None if this server did not make it."""
        job_id, _, rest = token.removeprefix(PREFIX).partition(".")
        generation = rest.partition(".")[0]
        if not (token.startswith(PREFIX) and is_ulid(job_id) and generation.isascii() and generation.isdigit()):
            return None
        if len(generation) > 9:
            return None
        expected = self.make(job_id, int(generation))
        return Meant(job_id, int(generation)) if hmac.compare_digest(expected.encode(), token.encode()) else None
