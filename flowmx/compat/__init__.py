"""The compatibility room: MXNet's module paths, the helpers that packages take from it, and the name ``mxnet``.

Nothing of flowmx itself stands on what is here. `paths` is the table of MXNet's paths, `aliases` makes modules of it,
`package` is the package ``mxnet``, and `members` gives flowmx's classes the private attributes that other packages
read. What else is here holds names of MXNet's own, by the module that they belong to there.
"""
