"""Who may move a job: the part of every moving statement that compares the mover with the job's row."""

import msgspec

from chargehand.engine.job import Job

EVERY_TENANT = None  # for a fleet whose token serves all tenants, and for nobody else


class Guard(msgspec.Struct, frozen=True, array_like=True):
    """A job moves only if its row agrees with all of this.

    No field has a default: whoever moves a job says whose it is, which door's, and by what the mover holds it.
    """

    job_id: str
    tenant: str | None  # a name, or EVERY_TENANT
    kind: str
    lease: int | None  # the number that came with the claim; None: the wire has none, or nobody needs to hold the job
    owner: str | None  # who claimed it; None: the lease is proof enough, or nobody needs to hold the job

    @classmethod
    def held(cls, job: Job) -> "Guard":
        """For whoever claimed the job and has it in hand."""
        return cls(job.id, job.tenant, job.kind, job.lease, job.lease_owner)

    @classmethod
    def seen(cls, job: Job) -> "Guard":
        """For a move that needs no holder (cancel, requeue, expire), of a job that was read as the caller's own."""
        return cls(job.id, job.tenant, job.kind, None, None)

    @property
    def has_holder(self) -> bool:
        return self.lease is not None or self.owner is not None

    def admits(self, job: Job) -> bool:
        """The same comparison as in the statement, for a job that was just read."""
        return (
            job.id == self.job_id
            and job.kind == self.kind
            and self.tenant in (None, job.tenant)
            and self.lease in (None, job.lease)
            and self.owner in (None, job.lease_owner)
        )
