"""Compatibility with MXNet: its module paths, private helpers that packages import, and the name ``mxnet``.

The rest of flowmx does not depend on this package. `paths` is the table of MXNet's module paths, `aliases` makes them
importable, `package` is the package ``mxnet``, and `members` adds the private attributes that other packages read to
flowmx's classes. The other modules hold helpers of MXNet's modules.
"""
