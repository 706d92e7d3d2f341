"""Add a site to those of other versions: ``python -m docs.versions SITE FOLDER`` (``make site``).

The folder has a site for each version, and a page that redirects to the newest. ``versions.json`` lists the versions,
newest first, for the menu in the sidebar (``_static/versions.js``). The sites of other versions are kept.
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
    """Copy a built site into the folder, replacing one of the same version; return all versions, newest first.

    Raises:
        ValueError: the site was not built by ``make docs``.
    """
    home = site / "index.html"
    match = re.search(r'data-version="([^"]+)"', home.read_text(encoding="utf-8")) if home.is_file() else None
    if match is None:
        raise ValueError(f"{site} is not a site built by `make docs`: its index.html has no version")
    shutil.rmtree(folder / match[1], ignore_errors=True)
    shutil.copytree(site, folder / match[1], ignore=shutil.ignore_patterns("_sources"))
    versions = sorted((path.parent.name for path in folder.glob("*/index.html")), key=_order, reverse=True)
    (folder / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(_LEAD.format(versions[0]), encoding="utf-8")
    (folder / ".nojekyll").touch()  # else GitHub Pages omits folders like _static
    return versions


def _order(version: str) -> tuple[list[int], bool, str]:
    """Return a sort key: by numbers; pre-releases (1.0rc1) come before their release."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(each) for each in release[0].split(".")] if release else []
    rest = version[release.end() :] if release else version
    return numbers, not rest, rest


if __name__ == "__main__":
    put(Path(sys.argv[1]), Path(sys.argv[2]))
