"""The files of a job: the parts of its answer that it asked to keep, and the partial answers of broken attempts."""

from urllib.parse import quote

import msgspec
from msgspec import Raw

from chargehand.doors.inference.request import NOTHING, ArtifactWish, StoredRequest
from chargehand.doors.inference.stream import AnswerStream
from chargehand.doors.inference.wire import UNREADABLE, ModelAnswer
from chargehand.engine.file import File
from chargehand.engine.job import Job
from chargehand.engine.runner import Hand
from chargehand.errors import ChargehandError
from chargehand.files import Files
from chargehand.observability.logs import get_logger

PRETTY_BYTES = 65_536

log = get_logger(__name__)


class _AskedFields(msgspec.Struct):
    model: Raw
    messages: Raw = NOTHING
    prompt: Raw = Raw(b'""')


class _AnswerFields(msgspec.Struct):
    message: Raw = NOTHING


_asked = msgspec.json.Decoder(_AskedFields)
_said = msgspec.json.Decoder(_AnswerFields)


class InferenceArtifact(msgspec.Struct):
    """A reference to a file of a job."""

    name: str
    media_type: str
    size: int
    sha256: str
    url: str


def artifact(job_id: str, file: File) -> InferenceArtifact:
    return InferenceArtifact(
        file.name, file.media_type, file.size, file.sha256, f"/jobs/{job_id}/artifacts/{quote(file.name, safe='')}"
    )


async def keep(
    files: Files, job: Job, hand: Hand, request: StoredRequest, answer: ModelAnswer
) -> list[InferenceArtifact]:
    """Keep what the job asked for. An artifact that cannot be kept is noted in the log, and the job goes on."""
    kept = []
    for wish in request.artifacts:
        try:
            content, media_type = _content(wish, request, answer)
            file = await files.save(job.tenant, wish.name, media_type, content, job_id=job.id)
            kept.append(artifact(job.id, file))
        except (ChargehandError, *UNREADABLE) as error:
            await hand.note(f"the artifact {wish.name} could not be kept: {error}", level="warn", step="artifacts")
    return kept


def _content(wish: ArtifactWish, request: StoredRequest, answer: ModelAnswer) -> tuple[bytes, str]:
    if wish.source == "answer":
        return answer.text.encode(), "text/plain; charset=utf-8"
    if wish.source == "structured":
        return _pretty(answer.text.encode()), "application/json"
    return _pretty(_transcript(request, answer)), "application/json"


def _pretty(data: bytes) -> bytes:
    """Indent short JSON for people. Indented, deeply nested JSON would have a thousand times its size."""
    if len(data) <= PRETTY_BYTES:
        return msgspec.json.format(data, indent=2)
    msgspec.json.decode(data, type=Raw)
    return data


def _transcript(request: StoredRequest, answer: ModelAnswer) -> bytes:
    """Return the messages and the answer as one conversation, from the bytes of both."""
    asked, said = _asked.decode(request.body), _said.decode(answer.result or b"{}")
    last = bytes(said.message) or msgspec.json.encode({"role": "assistant", "content": answer.said})
    before = bytes(asked.messages).strip()
    if not before.strip(b"[] \t\r\n") or before == b"null":
        before = msgspec.json.encode([{"role": "user", "content": asked.prompt}])
    return b'{"model":%b,"messages":%b,%b]}' % (bytes(asked.model), before[:-1], last)


async def keep_partial(files: Files, job: Job, request: StoredRequest, stream: AnswerStream) -> list[InferenceArtifact]:
    """Keep the partial answer of a broken attempt, as evidence of how far it came."""
    if not stream.size:
        return []
    native = request.path.startswith("/api/")
    name, media_type = (
        (f"attempt-{job.attempt}.ndjson", "application/x-ndjson")
        if native
        else (f"attempt-{job.attempt}.txt", "text/plain")
    )
    try:
        return [artifact(job.id, await files.save(job.tenant, name, media_type, stream.so_far(), job_id=job.id))]
    except ChargehandError as error:
        log.warning("the partial output of an attempt could not be kept", job_id=job.id, error=error.message)
        return []
