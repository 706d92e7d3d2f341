"""A site beside those of other versions: ``python -m docs.versions SITE FOLDER`` (``make site``).

The folder has a site for each version, ``versions.json`` with their names, newest first, which the choice in the
sidebar reads (``_static/versions.js``), and a page that leads to the newest. What is there of other versions stays.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

_LEAD = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}/">
<title>flowmx</title>
<a href="{0}/">flowmx {0}</a>
"""


def put(site: Path, folder: Path) -> list[str]:
    """Put a built site into the folder, in place of one of the same version; return all versions, newest first.

    Raises:
        ValueError: it is no site that ``make docs`` built.
    """
    home = site / "index.html"
    found = re.search(r'data-version="([^"]+)"', home.read_text(encoding="utf-8")) if home.is_file() else None
    if found is None:
        raise ValueError(f"{site} is no site that `make docs` built: its index.html says no version")
    shutil.rmtree(folder / found[1], ignore_errors=True)
    shutil.copytree(site, folder / found[1], ignore=shutil.ignore_patterns("_sources"))
    versions = sorted((path.parent.name for path in folder.glob("*/index.html")), key=_order, reverse=True)
    (folder / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(_LEAD.format(versions[0]), encoding="utf-8")
    (folder / ".nojekyll").touch()  # where folders like _static would else be left out
    return versions


def _order(version: str) -> tuple[list[int], bool, str]:
    """The order of versions: by numbers, and what comes before a release (1.0rc1) before it."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(each) for each in release[0].split(".")] if release else []
    rest = version[release.end() :] if release else version
    return numbers, not rest, rest


if __name__ == "__main__":
    put(Path(sys.argv[1]), Path(sys.argv[2]))
