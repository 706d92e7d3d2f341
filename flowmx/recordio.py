"""RecordIO (``mx.recordio``): files of records, of images mostly, as MXNet reads and writes them.

The implementation is in `flowmx.data.records`.
"""

from flowmx.data.records.files import MXIndexedRecordIO, MXRecordIO
from flowmx.data.records.framing import RecordFormatError
from flowmx.data.records.header import IRHeader, pack, pack_img, unpack, unpack_img

__all__ = [
    "IRHeader", "MXIndexedRecordIO", "MXRecordIO", "RecordFormatError", "pack", "pack_img", "unpack", "unpack_img",
]  # fmt: skip
