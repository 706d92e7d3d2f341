"""RecordIO files.

`framing` is the format (pure functions), `reader` reads at any offset, from any thread or process, `index` reads index
files, `header` is the format of an image's record, `files` has MXNet's classes.
"""
