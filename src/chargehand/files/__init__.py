"""Files: bytes on a disk under their SHA-256 (`blobs.py`), and rows in the store that say whose they are (`files.py`).

All work on the disk (`disk.py`) is done in threads.
"""

from chargehand.files.blobs import PIECE_BYTES, Blob, Blobs
from chargehand.files.files import Files, checked_name

__all__ = ["PIECE_BYTES", "Blob", "Blobs", "Files", "checked_name"]
