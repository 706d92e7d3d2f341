"""The files that may be oneDNN's library.

The wheel ``onednn-cpu-gomp`` puts the library into the ``lib`` folder of an environment, of the user's packages, or of
a folder of ``pip install --target``. Systems have it in folders of the dynamic linker.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

__all__ = ["DISTRIBUTION", "FILE", "candidates"]

FILE = "libdnnl.so.3"
DISTRIBUTION = "onednn-cpu-gomp"
_SETTING_OFF = ("0", "none", "off")
"""Values of the setting for which no library is loaded."""


def candidates(setting: str = "") -> Iterator[Path]:
    """Iterate over the files that may be the library, in the order of the search; most of them do not exist.

    Args:
        setting: the file, or its folder, that the user chose; other places are not searched then. ``"0"``: none.
    """
    if setting:
        path = Path(setting).expanduser()
        places = [] if setting.lower() in _SETTING_OFF else [path / FILE if path.is_dir() else path]
        return iter(places)
    return iter(dict.fromkeys(_places()))


def _places() -> Iterator[Path]:
    for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix):
        yield Path(prefix, "lib", FILE)
    yield from _of_distribution()
    if site.ENABLE_USER_SITE:
        yield Path(site.getuserbase(), "lib", FILE)
    for entry in sys.path:
        folder = Path(entry)
        if entry and any(folder.glob(f"{DISTRIBUTION.replace('-', '_')}-*.dist-info")):
            yield folder / "lib" / FILE  # pip install --target
            yield folder.parent.parent / FILE  # pip install --prefix: lib/python3.11/site-packages
    for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if entry:
            yield Path(entry, FILE)
    architecture = sysconfig.get_config_var("MULTIARCH") or "lib"
    for root in ("/usr/local", "/usr", "/"):
        for name in (f"lib/{architecture}", "lib64", "lib"):
            yield Path(root, name, FILE)


def _of_distribution() -> Iterator[Path]:
    """Iterate over the library files of the installed wheel."""
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == FILE:
            yield Path(os.path.normpath(file.locate()))
