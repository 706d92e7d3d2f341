"""Finds flowmx.comm, flowmx.devices and flowmx.ops in a checkout, where they are siblings of the folder flowmx/.

flowmx therefore runs from a checkout without an installation, and never with the folders of another installation.
Importing this module extends the search path of the package ``flowmx``; in an installation it does nothing.
"""

import sys
from pathlib import Path

__all__: list[str] = []

_package = Path(__file__).parent
if (_package.parent / "devices").is_dir() and not (_package / "devices").is_dir():
    sys.modules["flowmx"].__path__.append(str(_package.parent))
