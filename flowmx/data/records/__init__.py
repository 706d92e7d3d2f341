"""RecordIO files.

`framing` is the format (pure), `reader` reads at any offset, for any thread or process, `index` reads index files,
`header` is the format of an image's record, `files` are MXNet's classes.
"""
