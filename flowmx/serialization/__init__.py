"""MXNet's file formats, and safetensors, as pure functions over NumPy arrays and plain data.

`params` reads and writes ``.params`` files, `safetensors` files of that name, and `formats` either; `symbol_json`
reads and writes ``-symbol.json`` files, and `atomic` replaces files so that a reader finds the old content or the new,
never a part of it.
"""
