"""MXNet's file formats as pure functions over NumPy arrays and plain data.

`params` reads and writes ``.params`` files, `symbol_json` reads and writes ``-symbol.json`` files, and
`atomic` replaces files so that a reader finds the old content or the new, never a part of it.
"""
