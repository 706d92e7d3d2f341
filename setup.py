"""The package list of flowmx, found at build time; everything else stands in pyproject.toml."""

from setuptools import find_packages, setup

# Package -> folder. Three packages stand at the top of the repository, but are only ever installed under
# flowmx: a top-level `comm` would shadow Jupyter's.
ROOTS = {"flowmx": "flowmx", "flowmx.devices": "devices", "flowmx.ops": "ops", "flowmx.comm": "comm"}

packages = [
    package
    for root, folder in ROOTS.items()
    for package in (root, *(f"{root}.{name}" for name in find_packages(folder)))
]

setup(
    packages=packages,
    package_dir=ROOTS,
    package_data={
        "flowmx": ["py.typed"],
        "flowmx.compat": ["shim/mxnet/*"],
        "flowmx.contrib.text": ["files.json"],
        "flowmx.observability.dashboard": ["page/*"],
        "": ["*.pyi"],
    },
)
