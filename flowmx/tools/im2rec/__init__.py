"""``python -m flowmx im2rec``: writes lists of images and RecordIO files, with the options of MXNet's im2rec.py.

`image_list` writes .lst files (`flowmx.data.image_lists` reads them), `packing` converts an image file to a record, and
`command` is the command line.
"""

from flowmx.tools.im2rec.command import main

__all__ = ["main"]
