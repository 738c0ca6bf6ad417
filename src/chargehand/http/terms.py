"""Stores how the server takes jobs of a kind, for the database functions with which producers submit (on PostgreSQL)."""

import msgspec

from chargehand.engine.record import PutRecord
from chargehand.engine.records import Records
from chargehand.http.jobs import JobResource

RECORD = "submitting"  # as the functions of the database call it
BEGIN = '{"url":"","endpoint_id":""'


class Terms(msgspec.Struct, frozen=True):
    max_attempts: int  # of a job that names none
    max_body_bytes: int
    report: str  # of its webhook: the JSON behind URL and endpoint, to its end


def terms(jobs: JobResource, topics: tuple[str, ...], max_attempts: int, max_body_bytes: int) -> Terms:
    report = msgspec.json.encode(jobs.report("", "", topics)).decode()
    return Terms(max_attempts, max_body_bytes, report.removeprefix(BEGIN))


async def tell(records: Records, kind: str, terms: Terms) -> None:
    body = msgspec.json.encode(terms)
    known = await records.get(RECORD, "", kind)
    if known is None or known.body != body:
        await records.put(PutRecord(RECORD, "", kind, body))
