"""Kernels for the CPU by oneDNN (``onednn-cpu-gomp``). Importing the modules here registers them; the first kernel that
runs loads the library. Without it every kernel runs its operator's forward.
"""  # noqa: D205
