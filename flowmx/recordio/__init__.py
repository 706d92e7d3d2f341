"""RecordIO (``mx.recordio``): files of records, of images mostly, as MXNet reads and writes them.

`framing` knows the format, `source` reads at any offset, `files` are the classes of MXNet, `packing` is what an
image's record holds.
"""

from flowmx.recordio.files import MXIndexedRecordIO, MXRecordIO
from flowmx.recordio.framing import RecordFormatError
from flowmx.recordio.packing import IRHeader, pack, pack_img, unpack, unpack_img

__all__ = [
    "IRHeader", "MXIndexedRecordIO", "MXRecordIO", "RecordFormatError", "pack", "pack_img", "unpack", "unpack_img",
]  # fmt: skip
