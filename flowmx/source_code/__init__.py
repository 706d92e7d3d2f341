"""Write networks as source code of other frameworks, with files of their parameters.

A symbol becomes a description (:mod:`~flowmx.source_code.description`), whose steps come from the target's table of
operators. Parts that occur several times become classes (:mod:`~flowmx.source_code.blocks`), which are printed
(:mod:`~flowmx.source_code.printer`). :mod:`~flowmx.source_code.check` compares the result with the symbol.
"""

from flowmx.source_code.description import Unsupported
from flowmx.source_code.writing import Source, to_gluon, to_torch

__all__ = ["Source", "Unsupported", "to_gluon", "to_torch"]
