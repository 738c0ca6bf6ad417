"""Set every date in an ISO 9660 image to one instant, so that the same content gives the same bytes.

pycdlib uses the clock and the local time zone for its dates. ECMA-119 (and SUSP and Rock Ridge for the system use area) define where
the dates are in the finished image, so they are replaced there; the clock of the process need not be changed.
"""

import time
from collections.abc import Iterator

SECTOR = 2048

_FIRST_DESCRIPTOR = 16
_TERMINATOR = 255
_WITH_ROOT = (1, 2)  # the primary descriptor, and Joliet's
_ROOT_RECORD = 156
_CREATED, _MODIFIED, _EXPIRES, _EFFECTIVE = 813, 830, 847, 864
_NO_DATE = b"0" * 16 + b"\0"

# In a directory record, ECMA-119 9.1.
_EXTENT, _LENGTH, _DATE, _NAME_LENGTH, _NAME = 2, 10, 18, 32, 33

# In a TF entry, Rock Ridge 4.1.6: which of seven dates follow, and in which of two forms.
_TF_DATES, _TF_LONG = 0x7F, 0x80


def stamp(image: bytearray, epoch: int) -> None:
    """Set all dates in an image whose files are all in its root directory."""
    utc = time.gmtime(epoch)
    short = bytes((utc.tm_year - 1900, *utc[1:6], 0))
    long = time.strftime("%Y%m%d%H%M%S00", utc).encode() + b"\0"
    for at in _descriptors(image):
        for date in (_CREATED, _MODIFIED, _EFFECTIVE):
            image[at + date : at + date + 17] = long
        image[at + _EXPIRES : at + _EXPIRES + 17] = _NO_DATE
        root = at + _ROOT_RECORD
        image[root + _DATE : root + _DATE + 7] = short
        for record in _records(image, root):
            image[record + _DATE : record + _DATE + 7] = short
            _stamp_entries(image, record, short, long)


def _descriptors(image: bytearray) -> Iterator[int]:
    at = _FIRST_DESCRIPTOR * SECTOR
    while image[at] != _TERMINATOR:
        if image[at] in _WITH_ROOT:
            yield at
        at += SECTOR


def _records(image: bytearray, directory: int) -> Iterator[int]:
    at = _number(image, directory + _EXTENT) * SECTOR
    end = at + _number(image, directory + _LENGTH)
    while at < end:
        if image[at]:
            yield at
            at += image[at]
        else:  # records do not cross sectors: the rest of this one is empty
            at += SECTOR - at % SECTOR


def _stamp_entries(image: bytearray, record: int, short: bytes, long: bytes) -> None:
    """Set the dates in the system use area after the name. Names are so short that it needs no continuation area."""
    name = image[record + _NAME_LENGTH]
    at = record + _NAME + name + (name + 1) % 2  # an even length is padded
    end = record + image[record]
    while at + 4 <= end and image[at + 2] >= 4:
        if image[at : at + 2] == b"TF":
            flags = image[at + 4]
            dates = (long if flags & _TF_LONG else short) * (flags & _TF_DATES).bit_count()
            image[at + 5 : at + 5 + len(dates)] = dates
        at += image[at + 2]


def _number(image: bytearray, at: int) -> int:
    return int.from_bytes(image[at : at + 4], "little")
