"""OpenAI's Files: the input and the output of batches."""

from typing import Annotated, Any, Literal

import msgspec

from chargehand.config import Config
from chargehand.doors.inference.errors import write_openai
from chargehand.engine.chores import Chore
from chargehand.engine.file import File
from chargehand.engine.ids import is_ulid
from chargehand.engine.job import SECOND
from chargehand.errors import BadRequest, InvalidField, NotFound, TooLarge
from chargehand.files import Files, checked_name
from chargehand.http.files import send_file
from chargehand.http.forms import Part, parts
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, query, reply
from chargehand.observability.logs import get_logger

TAG = "batches"
PURPOSE = "batch"
PREFIX = "file-"
MEDIA_TYPE = "application/jsonl"
PAGE = 100  # clients that ask for more get the rest with the next page
FORM_BYTES = 64 << 10  # of a form, beside its file
PURPOSE_BYTES = 100

log = get_logger(__name__)


class FileObject(msgspec.Struct):
    id: str
    bytes: int
    created_at: int
    expires_at: Annotated[int | None, msgspec.Meta(description="null: kept for ever, or as long as its batch")]
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    status_details: str | None = None


class FileQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[str, msgspec.Meta(description="The id of the last file of the page before")] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000, description=f"A page has at most {PAGE}")] = PAGE
    purpose: Annotated[
        str, msgspec.Meta(max_length=PURPOSE_BYTES, pattern="^[ -~]*$", description="batch or batch_output")
    ] | None = None  # fmt: skip
    order: Literal["desc"] = "desc"


class FileList(msgspec.Struct):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class FileDeleted(msgspec.Struct):
    id: str
    object: str = "file"
    deleted: bool = True


class FilesApi:
    def __init__(self, config: Config, files: Files) -> None:
        self._files = files
        self._settings = config.inference
        self._retention = config.retention

    def routes(self) -> list[Route]:
        read, write, one = "jobs:read", "jobs:write", "/v1/files/{file_id}"
        openai: dict[str, Any] = {"error_writer": write_openai}
        # fmt: off
        return [
            Route("POST", "/v1/files", self.create_file, "Upload a file for a batch", write, TAG,
                  "A multipart form: `file`, and `purpose` with the value `batch`.", reply=FileObject, errors=(BadRequest, TooLarge), **openai),
            Route("GET", "/v1/files", self.list_files, "List files, newest first", read, TAG, query=FileQuery, reply=FileList, **openai),
            Route("GET", one, self.get_file, "Read what is known of a file", read, TAG, reply=FileObject, errors=(NotFound,), **openai),
            Route("GET", f"{one}/content", self.get_content, "Fetch a file", read, TAG, "With ranges and ETag.",
                  reply_media=MEDIA_TYPE, errors=(NotFound,), **openai),
            Route("DELETE", one, self.delete_file, "Delete a file", write, TAG, "A batch that has begun keeps its input.",
                  reply=FileDeleted, errors=(NotFound,), **openai),
        ]
        # fmt: on

    # uploading --------------------------------------------------------------------------------------------------------

    async def create_file(self, req: Request, resp: Response) -> None:
        if (req.content_length or 0) > self._settings.max_file_bytes + FORM_BYTES:
            raise TooLarge(f"the file is over {self._settings.max_file_bytes} bytes (inference.max_file_bytes)")
        if not (req.content_type or "").lower().startswith("multipart/form-data"):
            raise BadRequest("a multipart/form-data body is expected, with the parts `file` and `purpose`")
        saved: list[File] = []
        try:
            purpose = await self._read_form(req, saved)
            if purpose != PURPOSE:
                raise InvalidField("purpose", f"must be `{PURPOSE}`: files are kept here for batches")
            if not saved:
                raise InvalidField("file", "is missing: a part with this name and a file name is expected")
        except BaseException:
            # The file is kept only if the form ends well: not if it breaks off, or has something else after the file.
            for file in saved:
                await self._files.drop(file.id)
            raise
        reply(resp, self._shown(saved[0]))

    async def _read_form(self, req: Request, saved: list[File]) -> str:
        purpose = ""
        async for part in parts(req):
            if part.name == "purpose":
                purpose = (await part.read(PURPOSE_BYTES)).decode("utf-8", "replace").strip()
            elif part.name == "file" and saved:
                raise InvalidField("file", "must be one file")
            elif part.name == "file":
                saved.append(await self._save(req.caller.tenant, part))
        return purpose

    async def _save(self, tenant: str, part: Part) -> File:
        # Some clients send a whole path.
        name = checked_name("file", part.filename.replace("\\", "/").rpartition("/")[2] or "upload.jsonl")
        most = self._settings.max_file_bytes
        return await self._files.save(tenant, name, MEDIA_TYPE, part.pieces(), purpose=PURPOSE, max_bytes=most)

    # reading and deleting ---------------------------------------------------------------------------------------------

    async def list_files(self, req: Request, resp: Response) -> None:
        asked, tenant = query(req, FileQuery), req.caller.tenant
        before = None if asked.after is None else file_ulid("after", asked.after)
        limit = min(asked.limit, PAGE)
        found = await self._files.list_uploaded(tenant, asked.purpose, before, limit + 1)
        shown = [self._shown(file) for file in found[:limit]]
        ends = (shown[0].id, shown[-1].id) if shown else (None, None)
        reply(resp, FileList(shown, len(found) > limit, *ends))

    async def get_file(self, req: Request, resp: Response, file_id: str) -> None:
        reply(resp, self._shown(await self._get(req, file_id)))

    async def get_content(self, req: Request, resp: Response, file_id: str) -> None:
        await send_file(req, resp, self._files, await self._get(req, file_id))

    async def delete_file(self, req: Request, resp: Response, file_id: str) -> None:
        file = await self._get(req, file_id)
        await self._files.drop(file.id, file.tenant)
        reply(resp, FileDeleted(file_id))

    async def _get(self, req: Request, file_id: str) -> File:
        """Hide files without a purpose: they are artifacts, and are read at their jobs."""
        file = await self._files.get(file_ulid("file_id", file_id), req.caller.tenant)
        if file is None or not file.purpose:
            raise NotFound(f"there is no file {file_id}")
        return file

    def _shown(self, file: File) -> FileObject:
        kept, created_at = self._settings.file_seconds, file.created_at // SECOND
        expires_at = int(created_at + kept) if kept and file.job_id is None else None
        return FileObject(file_name(file.id), file.size, created_at, expires_at, file.name, file.purpose)

    # retention --------------------------------------------------------------------------------------------------------

    def chores(self) -> list[Chore]:
        return [Chore("old uploads", self._retention.interval_seconds, self._prune)]

    async def _prune(self) -> None:
        """Remove uploads that are too old. A batch that has begun has its own row for its input."""
        batch = self._retention.batch
        if self._settings.file_seconds:
            while await self._files.prune(self._settings.file_seconds, batch) == batch:
                log.debug("pruned", files=batch)


def file_name(file_id: str) -> str:
    """Return the id that OpenAI's clients use."""
    return f"{PREFIX}{file_id}"


def file_ulid(field: str, text: str) -> str:
    if not text.startswith(PREFIX) or not is_ulid(text.removeprefix(PREFIX)):
        raise InvalidField(field, f"must be the id of a file: {PREFIX} and 26 characters")
    return text.removeprefix(PREFIX)
