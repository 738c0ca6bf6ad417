"""An OCI registry on a directory: images and artifacts for the machines that are provisioned (Distribution Spec 1.1).

    door.py         the requests: who may, which operation, what is answered; the periodic tidying up
    paths.py        which URL means what
    names.py        what may be a name, a tag, a digest
    refusals.py     refusals, as this wire spells them
    sending.py      a blob on its way out: ranges, ETag
    receiving.py    a body on its way in, piece by piece
    layout.py       where everything lies in the directory
    drafts.py       small files that are written before the lock is taken
    uploads.py      blobs that are not complete yet
    layers.py       blobs that are
    documents.py    what a manifest refers to
    manifests.py    manifests, tags, referrers
    shelves.py      what each tenant has
    reach.py        all that hangs on a manifest
    collector.py    garbage collection

The directory is the truth and nodes may share it: nothing is remembered that could not be read again.
"""

from chargehand.doors.provisioning.registry.collector import Collected
from chargehand.doors.provisioning.registry.door import Admit, Registry

__all__ = ["Admit", "Collected", "Registry"]
