"""`/api/v1/servers`: register, read, probe and delete servers: the address and credentials of each BMC. No request returns a password."""

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from chargehand.doors.provisioning.job.assignment import Assignments
from chargehand.doors.provisioning.job.position import position_of
from chargehand.doors.provisioning.machines import Machines
from chargehand.doors.provisioning.names import BASE, KIND, READ, SERIAL, SERVER_RECORD, SERVERS
from chargehand.doors.provisioning.redfish.errors import RedfishError
from chargehand.doors.provisioning.redfish.facts import Bmc, MachineFacts
from chargehand.doors.provisioning.refusals import ProvisioningRefused, route
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.doors.provisioning.vault import Vault
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, Job, rfc3339
from chargehand.engine.reads import JobFilter
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.errors import Conflict, EgressRefused, InvalidField, NotFound
from chargehand.http.paging import Limit
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, query, read_body, reply
from chargehand.webhooks.egress import EgressPolicy

MAX_BODY = 65_536
PROBE_SECONDS = 10.0  # retries may take half of it: a caller waits for the answer

Text = Annotated[str, Meta(max_length=1024)]
Label = Annotated[str, Meta(max_length=200)]


class PutServer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    bmc_address: Annotated[str, Meta(min_length=1, max_length=2048, examples=["https://10.0.0.5"])]
    bmc_username: Text = ""
    bmc_password: (
        Annotated[
            str,
            Meta(
                max_length=1024,
                description="Never returned. Left out: the stored one is kept, unless bmc_address, bmc_username or tls changes (from insecure, tls may)",
            ),
        ]
        | None
    ) = None
    system_uuid: (
        Annotated[
            str,
            Meta(
                pattern=r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\Z",
                description="Needed if the BMC reports a UUID and no serial",
            ),
        ]
        | None
    ) = None
    vendor: Annotated[str, Meta(max_length=64, description="Needed if the BMC does not report it")] | None = None
    tls: Annotated[
        str,
        Meta(
            pattern=r"^(verify|insecure|sha256:[0-9A-Fa-f]{64})\Z",
            description="verify, insecure, or sha256: with the fingerprint of the BMC's certificate",
        ),
    ] = "verify"
    unidentified: Annotated[
        bool, Meta(description="Accept a BMC that reports neither serial nor UUID, if it has only one system")
    ] = False
    labels: Annotated[dict[Label, Label], Meta(max_length=64)] = {}


class ServerRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of the record."""

    bmc_address: str
    bmc_username: str = ""
    sealed_password: bytes = b""
    system_uuid: str | None = None
    vendor: str | None = None
    tls: str = "verify"
    unidentified: bool = False
    labels: dict[str, str] = {}
    facts: MachineFacts | None = None
    probed_at: int | None = None
    problem: str = ""  # why the last probe failed


class ServerProbe(msgspec.Struct):
    at: str
    ok: bool
    problem: str
    facts: MachineFacts | None


class ServerView(msgspec.Struct, kw_only=True):
    server_serial: str
    bmc_address: str
    bmc_username: str
    has_password: bool
    system_uuid: str | None
    vendor: str | None
    tls: str
    unidentified: bool
    labels: dict[str, str]
    probe: Annotated[ServerProbe, Meta(description="The result of the last probe")] | None
    active_job: str | None
    created_at: str
    updated_at: str


class RegisteredServers(msgspec.Struct):
    servers: list[ServerView]
    next: str | None


class ServerQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[str, Meta(max_length=64, description="`next` of the page before")] = ""
    limit: Limit = 100


_put = msgspec.json.Decoder(PutServer)
_kept = msgspec.json.Decoder(ServerRecord)


class Servers:
    def __init__(
        self, engine: Engine, vault: Vault, policy: EgressPolicy, machines: Machines, assignments: Assignments
    ) -> None:
        self._engine = engine
        self._jobs = engine.jobs
        self._records = engine.records
        self._vault = vault
        self._policy = policy
        self._machines = machines
        self._assignments = assignments

    def routes(self) -> list[Route]:
        one = f"{BASE}/servers/{{server_serial}}"
        # fmt: off
        return [
            route("GET", f"{BASE}/servers", self.list_servers, "List the servers", READ, query=ServerQuery, reply=RegisteredServers),
            route("GET", one, self.get_server, "Read a server", READ, reply=ServerView, errors=(NotFound,)),
            route("PUT", one, self.put_server, "Register or change a server", SERVERS, request=PutServer, reply=ServerView, errors=(Conflict, EgressRefused)),
            route("DELETE", one, self.delete_server, "Delete a server", SERVERS, status=204, errors=(NotFound, Conflict)),
            route("POST", f"{one}/probe", self.probe_server, "Probe a server: ask its BMC what it is and what it can do", SERVERS,
                  "Changes nothing at the machine. If the BMC cannot be reached, the answer is still 200, with `ok` false.",
                  reply=ServerProbe, errors=(NotFound,)),
        ]
        # fmt: on

    # HTTP requests ------------------------------------------------------------------------------------------------------

    async def list_servers(self, req: Request, resp: Response) -> None:
        by, tenant = query(req, ServerQuery), req.caller.tenant
        found = await self._records.list(SERVER_RECORD, tenant, after=by.after, limit=by.limit)
        servers = [await self._view(record) for record in found]
        reply(resp, RegisteredServers(servers, found[-1].name if len(found) == by.limit else None))

    async def get_server(self, req: Request, resp: Response, server_serial: str) -> None:
        reply(resp, await self._view(await self._record(req.caller.tenant, server_serial)))

    async def put_server(self, req: Request, resp: Response, server_serial: str) -> None:
        self._vault.require_open()
        tenant, serial = req.caller.tenant, checked_serial(server_serial)
        asked = decode(_put, await read_body(req, MAX_BODY))
        address = self._policy.check_url("bmc_address", asked.bmc_address).rstrip("/")
        if "?" in address:
            raise InvalidField("bmc_address", "must have no query: give the BMC's address, such as https://10.0.0.5")
        registered = await self._assignments.begin(tenant, serial)
        if registered != serial:
            raise ProvisioningRefused(409, "conflict.serial", f"this serial is registered as {registered}")
        while True:
            known = await self._records.get(SERVER_RECORD, tenant, serial)
            before = None if known is None else _kept.decode(known.body)
            kept = _changed(before, asked, address)
            if before and before.sealed_password and asked.bmc_password is None and (field := _redirects(before, kept)):
                # Else whoever may change a server could read its password, by having it sent to an address of their own.
                raise InvalidField("bmc_password", f"must be given again when {field} changes")
            if before and _who(before) != _who(kept):
                await self._require_calm(tenant, serial)
            if asked.bmc_password is not None:
                kept = replace(
                    kept, sealed_password=self._vault.seal(_context(tenant, serial), asked.bmc_password.encode())
                )
            expected = 0 if known is None else known.version
            put = PutRecord(SERVER_RECORD, tenant, serial, msgspec.json.encode(kept), expected=expected)
            if (record := await self._records.put(put)) is not None:
                return reply(resp, await self._view(record))

    async def delete_server(self, req: Request, resp: Response, server_serial: str) -> None:
        tenant = req.caller.tenant
        record = await self._record(tenant, server_serial)
        if (job := await self.active_job(tenant, record.name)) is not None:
            raise ProvisioningRefused(
                409, Key.CONFLICT_ACTIVE_JOB, f"job {job.id} is active for this server; wait, or cancel it"
            )
        await self._records.drop(DropRecord(SERVER_RECORD, tenant, record.name))
        await self._assignments.drop(tenant, record.name)
        resp.status = 204

    async def probe_server(self, req: Request, resp: Response, server_serial: str) -> None:
        tenant = req.caller.tenant
        record = await self._record(tenant, server_serial)
        facts, problem = None, ""
        try:
            bmc = self.bmc_of(tenant, record.name, _kept.decode(record.body))
            async with self._machines.open(bmc, PROBE_SECONDS) as machine:
                facts = await machine.discover()
        except RedfishError as error:
            problem = error.message
        at = self._engine.now()
        await self._remember(tenant, record.name, facts, problem, at)
        reply(resp, ServerProbe(rfc3339(at), facts is not None, problem, facts))

    # for the rest of the door -------------------------------------------------------------------------------------------

    async def get(self, tenant: str, serial: str) -> ServerRecord:
        record = await self._records.get(SERVER_RECORD, tenant, serial)
        if record is None:
            raise NotFound(f"there is no server {serial}")
        return _kept.decode(record.body)

    async def bmc(self, tenant: str, serial: str) -> Bmc:
        return self.bmc_of(tenant, serial, await self.get(tenant, serial))

    def bmc_of(self, tenant: str, serial: str, kept: ServerRecord) -> Bmc:
        sealed = kept.sealed_password
        password = self._vault.open(_context(tenant, serial), sealed).decode() if sealed else ""
        return Bmc(
            kept.bmc_address, kept.bmc_username, password, serial, kept.system_uuid, kept.vendor, kept.tls, kept.unidentified
        )  # fmt: skip

    async def active_job(self, tenant: str, serial: str) -> Job | None:
        """Return the server's active job, or None. There is one at most: they have the same unique key."""
        found = await self._jobs.list_jobs(JobFilter(tenant, KIND, serial, live=True, limit=1))
        return found[0] if found else None

    # records ------------------------------------------------------------------------------------------------------------

    async def _record(self, tenant: str, serial: str) -> Record:
        record = await self._records.get(SERVER_RECORD, tenant, serial) if SERIAL.fullmatch(serial) else None
        if record is None:
            raise NotFound(f"there is no server {serial[:64]!r}; register it with PUT {BASE}/servers/SERIAL")
        return record

    async def _require_calm(self, tenant: str, serial: str) -> None:
        """Refuse the change while a job is at work: it must clean up the machine that it began with."""
        job = await self.active_job(tenant, serial)
        if job is not None and position_of(job).begun:
            raise ProvisioningRefused(
                409, Key.CONFLICT_ACTIVE_JOB, f"job {job.id} is at work on this server; wait for its end, or cancel it"
            )

    async def _remember(self, tenant: str, serial: str, facts: MachineFacts | None, problem: str, at: int) -> None:
        while (record := await self._records.get(SERVER_RECORD, tenant, serial)) is not None:
            kept = _kept.decode(record.body)
            kept = replace(kept, facts=facts or kept.facts, probed_at=at, problem=problem)
            put = PutRecord(SERVER_RECORD, tenant, serial, msgspec.json.encode(kept), expected=record.version)
            if await self._records.put(put) is not None:
                return

    async def _view(self, record: Record) -> ServerView:
        kept = _kept.decode(record.body)
        active = await self.active_job(record.tenant, record.name)
        probe = None
        if kept.probed_at is not None:
            probe = ServerProbe(rfc3339(kept.probed_at), not kept.problem, kept.problem, kept.facts)
        return ServerView(
            server_serial=record.name,
            bmc_address=kept.bmc_address,
            bmc_username=kept.bmc_username,
            has_password=bool(kept.sealed_password),
            system_uuid=kept.system_uuid,
            vendor=kept.vendor,
            tls=kept.tls,
            unidentified=kept.unidentified,
            labels=kept.labels,
            probe=probe,
            active_job=None if active is None else active.id,
            created_at=rfc3339(record.created_at // SECOND * SECOND),
            updated_at=rfc3339(record.updated_at // SECOND * SECOND),
        )


def checked_serial(serial: str) -> str:
    if not SERIAL.fullmatch(serial):
        raise InvalidField(
            "server_serial", "must have 1 to 64 letters, digits and . _ : + -, beginning with a letter or a digit"
        )
    return serial


def _who(kept: ServerRecord) -> tuple[str, str | None, bool]:
    """Return the fields by which the machine is found and identified."""
    return kept.bmc_address, kept.system_uuid, kept.unidentified


def _redirects(before: ServerRecord, after: ServerRecord) -> str:
    """Return the changed field that could send the stored password to another receiver, or "". A stricter `tls` cannot."""
    if before.bmc_address != after.bmc_address:
        return "bmc_address"
    if before.bmc_username != after.bmc_username:
        return "bmc_username"
    return "tls" if before.tls not in (after.tls, "insecure") else ""


def _changed(kept: ServerRecord | None, asked: PutServer, address: str) -> ServerRecord:
    """Return the new record. The password is kept, and the last probe too if the address is the same."""
    same = kept is not None and kept.bmc_address == address
    return ServerRecord(
        bmc_address=address,
        bmc_username=asked.bmc_username,
        sealed_password=kept.sealed_password if kept else b"",
        system_uuid=asked.system_uuid,
        vendor=asked.vendor,
        tls=asked.tls.lower(),
        unidentified=asked.unidentified,
        labels=asked.labels,
        facts=kept.facts if kept and same else None,
        probed_at=kept.probed_at if kept and same else None,
        problem=kept.problem if kept and same else "",
    )


def _context(tenant: str, serial: str) -> str:
    return f"bmc/{tenant}/{serial}"
