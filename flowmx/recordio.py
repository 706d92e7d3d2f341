"""RecordIO (``mx.recordio``): files of records, usually images, in MXNet's format.

The implementation is in `flowmx.data.records`.
"""

from flowmx.data.records.files import MXIndexedRecordIO, MXRecordIO
from flowmx.data.records.framing import RecordFormatError
from flowmx.data.records.header import IRHeader, pack, pack_img, unpack, unpack_img

__all__ = [
    "IRHeader", "MXIndexedRecordIO", "MXRecordIO", "RecordFormatError", "pack", "pack_img", "unpack", "unpack_img",
]  # fmt: skip
