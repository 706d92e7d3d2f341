"""``python -m flowmx im2rec``: lists of images, and RecordIO files made of them; the options of MXNet's im2rec.py.

`lists` makes .lst files (`flowmx.data.image_lists` reads them), `packing` turns an image file into a record, `command`
is the command line.
"""

from flowmx.tools.im2rec.command import main

__all__ = ["main"]
