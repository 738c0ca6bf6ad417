"""Decide which deliveries a move makes. Pure, and the same for both databases."""

from functools import lru_cache
from typing import NamedTuple

import msgspec

from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import Report

_decoder = msgspec.json.Decoder(tuple[Report, ...])
_encoder = msgspec.json.Encoder()


class NewDelivery(NamedTuple):
    id: str
    tenant: str
    job_id: str
    seq: int
    endpoint_id: str
    url: str
    dialect: str


def encode_reports(reports: tuple[Report, ...]) -> str:
    return _encoder.encode(reports).decode() if reports else ""


@lru_cache(maxsize=4096)  # callers send the same few URLs again and again
def decode_reports(text: str) -> tuple[Report, ...]:
    return _decoder.decode(text)


def announce(new_id: UlidMaker, tenant: str, job_id: str, seq: int, topic: str, reports: str) -> list[NewDelivery]:
    """Return the deliveries of an event that gave the job a new topic."""
    if not reports:
        return []
    return [
        NewDelivery(new_id(), tenant, job_id, seq, report.endpoint_id, report.url, report.dialect)
        for report in decode_reports(reports)
        if report.wants(topic)
    ]
