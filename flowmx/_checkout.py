"""Find flowmx.comm, flowmx.devices and flowmx.ops in a checkout, where their folders lie beside flowmx/, not in it.

So flowmx runs in the root of a checkout without an installation, and never with the folders of another, installed one.
Importing this extends the search path of package ``flowmx``; in an installation it does nothing.
"""

import sys
from pathlib import Path

__all__: list[str] = []

_package = Path(__file__).parent
if (_package.parent / "devices").is_dir() and not (_package / "devices").is_dir():
    sys.modules["flowmx"].__path__.append(str(_package.parent))
