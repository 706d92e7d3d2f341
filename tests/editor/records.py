"""Files of records, with and without an index."""

import tempfile
from pathlib import Path

import flowmx as mx

with tempfile.TemporaryDirectory() as folder:
    path, index = str(Path(folder) / "a.rec"), str(Path(folder) / "a.idx")
    writer = mx.recordio.MXIndexedRecordIO(index, path, "w")
    for number in range(3):
        writer.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, float(number), number, 0), b"image"))
    writer.close()
    reader = mx.recordio.MXIndexedRecordIO(index, path, "r")
    header, content = mx.recordio.unpack(reader.read_idx(2))
    assert header.label == 2 and content == b"image" and list(reader.keys) == [0, 1, 2]
    reader.close()
