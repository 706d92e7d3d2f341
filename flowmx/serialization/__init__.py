"""MXNet's file formats, safetensors and GGUF, as pure functions over NumPy arrays and plain data.

`params` reads and writes ``.params`` files, `safetensors` safetensors files, `gguf` files of language models, and
`formats` all array formats.
`symbol_json` reads and writes ``-symbol.json`` files. `atomic` writes and reads files such that a reader sees either
the old or the new content; `in_place` overwrites existing files.
"""
