"""Files that belong to a job: what it asked to be kept of its answer, and what a broken attempt had said so far."""

from typing import Any
from urllib.parse import quote

import msgspec

from chargehand.doors.inference.request import ArtifactWish, Request
from chargehand.doors.inference.wire import Answer
from chargehand.engine.file import File
from chargehand.engine.job import Job
from chargehand.engine.runner import Hand
from chargehand.errors import ChargehandError
from chargehand.files import Files
from chargehand.observability.logs import get_logger

log = get_logger(__name__)


class Artifact(msgspec.Struct):
    """A reference to a file of a job."""

    name: str
    media_type: str
    size: int
    sha256: str
    url: str


def artifact(job_id: str, file: File) -> Artifact:
    return Artifact(
        file.name, file.media_type, file.size, file.sha256, f"/jobs/{job_id}/artifacts/{quote(file.name, safe='')}"
    )


async def keep(files: Files, job: Job, hand: Hand, request: Request, answer: Answer) -> list[Artifact]:
    """What the job wished to have kept. A wish that cannot be granted is said in the log and costs nothing else."""
    kept = []
    for wish in request.artifacts:
        try:
            content, media_type = _content(wish, request, answer)
            file = await files.save(job.tenant, wish.name, media_type, content, job_id=job.id)
            kept.append(artifact(job.id, file))
        except (ChargehandError, msgspec.DecodeError) as error:
            await hand.note(f"the artifact {wish.name} could not be kept: {error}", level="warn", step="artifacts")
    return kept


def _content(wish: ArtifactWish, request: Request, answer: Answer) -> tuple[bytes, str]:
    if wish.source == "answer":
        return answer.text.encode(), "text/plain; charset=utf-8"
    if wish.source == "structured":
        return msgspec.json.format(answer.text.encode(), indent=2), "application/json"
    asked: dict[str, Any] = msgspec.json.decode(bytes(request.body))
    result = msgspec.json.decode(answer.result or b"{}")
    before = asked.get("messages") or [{"role": "user", "content": asked.get("prompt", "")}]
    last = result.get("message") or {"role": "assistant", "content": answer.text}
    transcript = {"model": asked.get("model"), "messages": [*before, last]}
    return msgspec.json.format(msgspec.json.encode(transcript), indent=2), "application/json"


async def keep_partial(files: Files, job: Job, request: Request, content: bytes) -> list[Artifact]:
    """The bytes of an attempt that broke: evidence for whoever wants to know how far it came."""
    if not content:
        return []
    native = request.path.startswith("/api/")
    name, media_type = (
        (f"attempt-{job.attempt}.ndjson", "application/x-ndjson")
        if native
        else (f"attempt-{job.attempt}.txt", "text/plain")
    )
    try:
        return [artifact(job.id, await files.save(job.tenant, name, media_type, content, job_id=job.id))]
    except ChargehandError as error:
        log.warning("the partial output of an attempt could not be kept", job_id=job.id, error=error.message)
        return []
