"""An OCI registry on a directory: images and artifacts for the machines that are provisioned (Distribution Spec 1.1).

    door.py         the HTTP requests, and the periodic garbage collection
    paths.py        the operation of each URL
    names.py        valid names, tags and digests
    refusals.py     errors in the OCI format
    sending.py      sends a blob: ranges, ETag
    receiving.py    receives a body, piece by piece
    layout.py       the paths of all files in the directory
    drafts.py       durable writes of small files
    uploads.py      blobs that are not complete yet
    layers.py       blobs that are complete
    documents.py    the references of a manifest
    manifests.py    manifests, tags, referrers
    shelves.py      the repositories of each tenant
    reach.py        all that a manifest refers to, and all that refers to it
    collector.py    garbage collection

All state is in the directory, which nodes may share: caches hold only what can be read from there again.
"""

from chargehand.doors.provisioning.registry.collector import Collected
from chargehand.doors.provisioning.registry.door import Admit, Registry

__all__ = ["Admit", "Collected", "Registry"]
