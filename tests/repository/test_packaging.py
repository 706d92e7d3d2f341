"""Packaging: the conda recipe and the Dockerfile agree with pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest

import flowmx as mx
from flowmx.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKER = (ROOT / "packaging" / "docker" / "Dockerfile").read_text()
IGNORED = (ROOT / "packaging" / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
CONDA_NAMES = {"ml-dtypes": "ml_dtypes", "msgpack": "msgpack-python"}
"""From the names of PyPI to conda-forge's, where they differ."""


@pytest.fixture(scope="module")
def recipe():
    return pytest.importorskip("yaml").safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())


def in_conda(requirements):
    """Requirements of pyproject.toml as a recipe has them, without their conditions."""
    for each in requirements:
        name, bound = re.fullmatch(r"([\w-]+)\s*([^;\s]*).*", each).groups()
        yield f"{CONDA_NAMES.get(name, name)} {bound}"


def test_the_recipe_is_of_this_version(recipe):
    project = PROJECT["project"]
    assert recipe["context"] == {"name": project["name"], "version": project["version"]}
    assert recipe["context"]["version"] == mx.__version__
    assert recipe["about"]["summary"] == project["description"]
    assert recipe["about"]["license"] == project["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()
    (script,) = [f"{name} = {where}" for name, where in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == [script]
    assert (ROOT / "packaging" / "conda" / recipe["source"]["path"]).resolve() == ROOT


def test_the_recipe_has_the_projects_requirements(recipe):
    run = {each["then"] if isinstance(each, dict) else each for each in recipe["requirements"]["run"]}
    wanted = {each for each in in_conda(PROJECT["project"]["dependencies"]) if not each.startswith("onednn")}
    assert run == wanted | {f"python {PROJECT['project']['requires-python']}"}
    assert set(recipe["requirements"]["host"]) == {
        *in_conda(PROJECT["build-system"]["requires"]), f"python {PROJECT['project']['requires-python']}", "pip",
    }  # fmt: skip


def test_the_image_is_built_from_existing_files():
    copied = [
        path for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKER, flags=re.MULTILINE) for path in line.split()[:-1]
    ]
    assert all((ROOT / path).exists() for path in copied)
    assert sorted(copied) == sorted(line[1:] for line in IGNORED if line.startswith("!"))
    setup = (ROOT / "setup.py").read_text()
    folders = re.findall(r'"(?:flowmx[\w.]*)": "([^"]+)"', setup.split("ROOTS = {")[1].split("}")[0])
    assert folders
    assert all(any(Path(folder).is_relative_to(path) for path in copied) for folder in folders)


def test_the_image_runs_a_python_that_flowmx_supports_and_a_command_that_it_has(capsys):
    (python,) = re.findall(r"^ARG PYTHON=(.*)$", DOCKER, flags=re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in PROJECT["project"]["classifiers"]
    assert re.search(r'^ENTRYPOINT \["flowmx"\]\nCMD \["info"\]$', DOCKER, flags=re.MULTILINE)
    assert main(["info"]) in (0, None)
    assert mx.__version__ in capsys.readouterr().out


def test_advice_to_install_names_packages():
    """`pip install 'flowmx[image]'` fails, because flowmx is not on an index."""
    folders = ["flowmx", "devices", "ops", "comm", "docs", "examples", "benchmarks"]
    files = [path for folder in folders for kind in ("*.py", "*.md", "*.ipynb") for path in (ROOT / folder).rglob(kind)]
    texts = {path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *files]}
    assert not [str(path) for path, text in texts.items() if re.search(r"pip install [^\n`]*\bflowmx(\[|`|$)", text)]
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    declared = {re.match(r"[\w-]+", line)[0] for group in groups for line in group}
    messages = [text for path, text in texts.items() if path.is_relative_to(ROOT / "flowmx") or "devices" in path.parts]
    advised = [name for text in messages for name in re.findall(r"pip install '?([a-z][\w-]+)", text)]
    assert len(advised) > 6
    assert set(advised) <= declared
