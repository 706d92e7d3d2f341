"""The documentation is correct: the names in it exist, its links work, and the index lists every page."""

import argparse
import re
from pathlib import Path

import pytest

import flowmx as mx
from flowmx import cli
from flowmx.settings import TABLE
from tests import pages

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
PAGES["../README.md"] = (DOCS.parent / "README.md").read_text(encoding="utf-8")
COMMANDS = {name: module for group in cli.COMMANDS.values() for name, (module, _) in group.items()}
SOURCES = ("flowmx", "devices", "ops", "comm", "tests", "benchmarks", "examples", "docs")
SETTINGS = {row.variable for row in TABLE.values()}
ABSENT = {
    "mx.np",
    "mx.npx",
    "mx.library.load",
    "mx.nd.double",
    "mx.sym.double",
    "mx.nd.sparse",
    "mx.nd.name",
    "mx.sym.name",
    "mx.nd.f",
    "mx.dashboard",
}
"""Names on pages that are deliberately missing, not implemented yet, or placeholders."""


def missing(name):
    target = mx
    for part in name.split(".")[1:]:
        if not hasattr(target, part):
            return True
        target = getattr(target, part)
    return False


def prefixes(names):
    return {name for name in names if any(setting.startswith(f"{name}_") for setting in SETTINGS)}


@pytest.mark.parametrize("page", PAGES)
def test_names_on_a_page_exist(page):
    text = PAGES[page]
    actual = pages.settings(text)
    assert actual - SETTINGS - prefixes(actual) == set(), "no such settings"
    assert pages.commands(text) - {"COMMAND"} <= COMMANDS.keys(), "no such commands"
    assert [name for name in pages.names(text) - ABSENT if missing(name)] == [], "no such names"


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page):
    for path, anchor in pages.links(PAGES[page]):
        target = (DOCS / page).parent / path if path else DOCS / page
        assert target.exists(), f"{page} links to {path}"
        if anchor:
            assert anchor in pages.anchors(target.read_text(encoding="utf-8")), f"{page} links to {path}#{anchor}"


@pytest.mark.parametrize("page", ["finding.md", "architecture.md", "engine.md", "distributed.md", "../CONTRIBUTING.md"])
def test_the_files_that_a_page_names_exist(page):
    root = DOCS.parent
    files = [path.relative_to(root).as_posix() for top in SOURCES for path in (root / top).rglob("*.py")]
    files += [path.name for path in root.glob("*.py")]
    named = set(re.findall(r"[\w/]*\w\.py\b", (DOCS / page).read_text(encoding="utf-8"))) - {"train.py"}
    named = {name for name in named if "NAME" not in name}
    assert [name for name in sorted(named) if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_the_index_lists_every_page_once():
    actual = pages.listed(PAGES["index.md"])
    sections = [name for name in actual if name.startswith("sections/")]
    for section in sections:
        listed = [name.removeprefix("/") for name in pages.listed(PAGES[f"{section}.md"])]
        linked = [path.removeprefix("../").removesuffix(".md") for path, _ in pages.links(PAGES[f"{section}.md"])]
        assert set(listed) <= set(linked), section
        actual = [*actual, *listed]
    assert sorted(actual) == sorted(
        name.removesuffix(".md") for name in PAGES if name not in ("index.md", "../README.md")
    )


class Told(Exception):
    pass


def options_of(command, monkeypatch):
    """The options that a command takes."""

    def stop(self, *args, **kwargs):
        raise Told({option for action in self._actions for option in action.option_strings})

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Told) as caught:
        cli._command(command, ["--help"])
    monkeypatch.undo()
    return caught.value.args[0]


def test_command_lines_use_existing_options(monkeypatch):
    lines = [(name, *line) for name, page in PAGES.items() for line in pages.command_lines(page)]
    assert len(lines) > 15
    options_by_command = {command: options_of(command, monkeypatch) for command in {line[1] for line in lines}}
    for page, command, options in lines:
        script = command in ("train", "plan")  # what stands behind the script is its own
        assert set(options) <= options_by_command[command] | ({"--epochs", "--lr"} if script else set()), (
            f"{page}: {command}"
        )


def test_the_api_pages_document_existing_modules():
    import importlib
    import re

    matches = [name for page in PAGES.values() for name in re.findall(r"\.\. automodule:: (\S+)", page)]
    assert len(matches) > 20
    for name in matches:
        assert importlib.import_module(name).__all__, name


def test_the_checks_find_errors():
    page = (
        "# A title, with `code`!\n`FLOWMX_SPEED=1`, FLOWMX_TLS_..., `mx.nd.warp(x)`, `xmx.y`, `python -m flowmx dance`,"
        " [there](gone.md#here) [out](https://a.b) ![picture](p.svg)\n"
        "```sh\npython -m flowmx --traceback bench --fast -- --x\n```\n"
    )
    assert pages.settings(page) == {"FLOWMX_SPEED"}
    assert pages.names(page) == {"mx.nd.warp"} and missing("mx.nd.warp") and not missing("mx.nd.zeros")
    assert pages.commands(page) == {"dance", "bench"}
    assert list(pages.command_lines(page)) == [("bench", ["--fast"])]
    assert list(pages.links(page)) == [("gone.md", "here"), ("p.svg", "")]
    assert pages.anchors(page) == {"a-title-with-code"}
    assert pages.listed("```{toctree}\n:hidden:\n\na\nb/c\n```") == ["a", "b/c"]
