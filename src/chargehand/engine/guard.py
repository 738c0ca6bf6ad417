"""Who may move a job: every statement that moves a job compares this with the job's row."""

import msgspec

from chargehand.engine.job import Job

EVERY_TENANT = None  # for a fleet whose token serves all tenants, and for nobody else


class Guard(msgspec.Struct, frozen=True, array_like=True):
    """A job moves only if its row matches all of these fields.

    No field has a default: the mover must say whose job it is, which door's, and by which lease or owner it is held.
    """

    job_id: str
    tenant: str | None  # a name, or EVERY_TENANT
    kind: str
    lease: int | None  # the number that came with the claim; None: the wire has none, or nobody needs to hold the job
    owner: str | None  # who claimed it; None: the lease is proof enough, or nobody needs to hold the job

    @classmethod
    def held(cls, job: Job) -> "Guard":
        """Return the guard for a mover that has claimed the job."""
        return cls(job.id, job.tenant, job.kind, job.lease, job.lease_owner)

    @classmethod
    def seen(cls, job: Job) -> "Guard":
        """Return the guard for a move that needs no lease (cancel, requeue, expire), of a job that the caller may read."""
        return cls(job.id, job.tenant, job.kind, None, None)

    @property
    def has_holder(self) -> bool:
        return self.lease is not None or self.owner is not None

    def admits(self, job: Job) -> bool:
        """Return whether the statement would match this job, as it was just read."""
        return (
            job.id == self.job_id
            and job.kind == self.kind
            and self.tenant in (None, job.tenant)
            and self.lease in (None, job.lease)
            and self.owner in (None, job.lease_owner)
        )
