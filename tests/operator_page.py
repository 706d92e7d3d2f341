"""Write docs/operators.md, the page of all operators: ``python -m tests.operator_page``. A test compares the page."""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from flowmx.ops.registry.documentation import inputs_of, is_elementwise, outputs_of
from flowmx.ops.registry.examples import example
from flowmx.ops.registry.operators import Operator, registered_operators
from flowmx.ops.registry.parameters import Parameter
from tests.surface import EXCLUDED, FUNCTIONS, GRADIENTS, NUMPY, OPERATORS, SPARSE

FILE = Path(__file__).parents[1] / "docs" / "operators.md"

_STATES = {
    "operator": "operators",
    "alias": "aliases of these",
    "function": "functions that are not operators of the registry",
    "gradient": "gradients: MXNet registers an operator for each; here gradients are composed of operators",
    "sparse": "names under `mx.nd.sparse`: the operators are there [without the prefix](sparse.md)",
    "numpy": "operators of `mx.np` and `mx.npx`: see [NumPy's functions](numpy.md); symbols of most can be loaded",
    "excluded": "not provided, for the reasons below",
}

_HEAD = """\
# Operators

<!-- Written by `python -m tests.operator_page`; a test compares it. -->

All operators that MXNet 1.9.1 registers, and their state in flowmx. An operator `name` is `mx.nd.name` on arrays and
`mx.sym.name` on symbols. Operators whose names begin with `_linalg_`, `_contrib_`, `_image_`, `_random_` or `_sample_`
are also in the namespace of that name (`mx.nd.linalg.gemm2`). The arguments are the inputs, then the parameters with
their defaults (`=?`: required). `help(mx.nd.name)` documents them. Operators without a list of shapes have inputs and
outputs of the same shape and dtype, which may be any.

"""


def state(name: str) -> str | None:
    """Return the state of an operator name of MXNet, a key of the table of states; None if it is missing."""
    cls = registered_operators().get(name)
    if cls is not None and not cls.traits.hidden:
        return "operator" if cls.name == name else "alias"
    if name in FUNCTIONS:
        return "function"
    for kind, prefixes in (("gradient", GRADIENTS), ("numpy", NUMPY), ("sparse", SPARSE)):
        if name.startswith(prefixes):
            return kind
    return "excluded" if name in EXCLUDED else None


def sentence(cls: type[Operator]) -> str:
    """Return the first sentence of an operator's docstring, on one line."""
    paragraph = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
    first = re.match(r".*?(?<!\.)\.(?= [A-Z`])", paragraph)
    return first[0] if first else paragraph


def call_of(cls: type[Operator]) -> str:
    """Return the call of an operator with its arguments."""

    def text(parameter: Parameter) -> str:
        default = "?" if parameter.required else parameter.render(parameter.default)
        return f"{parameter.name}={default or repr(default)}"

    inputs = ["*data"] if cls.variadic else [*cls.arguments, *cls.auxiliary]
    parameters = [text(parameter) for parameter in cls.parameters.values() if parameter.name != cls.variadic]
    return f"{cls.name}({', '.join([*inputs, *parameters])})"


def arrays_of(cls: type[Operator]) -> str:
    """Return the shapes and dtypes of inputs and outputs as a list; empty for elementwise operators."""
    if is_elementwise(cls):
        return ""
    items = [f"`{name}`: {text}" for name, text in inputs_of(cls).items()] + [f"Returns: {outputs_of(cls)}"]
    return "".join(f"  - {item}.\n" for item in items).replace("*", r"\*").replace(r"`\*", "`*")


def families() -> dict[str, list[type[Operator]]]:
    """Return the provided operators by module, in registration order."""
    families: dict[str, dict[type[Operator], None]] = defaultdict(dict)
    for cls in registered_operators().values():
        if not cls.traits.hidden:
            module = sys.modules[cls.__module__]
            families[re.split(r"[:;\n]|\.(?=\s|$)|, each", module.__doc__ or module.__name__)[0]][cls] = None
    return {title: list(classes) for title, classes in sorted(families.items())}


def words(names: Iterable[str]) -> str:
    """Return names as a wrapped paragraph."""
    return textwrap.fill(" ".join(f"`{name}`" for name in sorted(names)), 120, break_on_hyphens=False) + "\n"


def page() -> str:
    """Return the page."""
    by_state: dict[str | None, list[str]] = defaultdict(list)
    for name in OPERATORS:
        by_state[state(name)].append(name)
    lines = [_HEAD, f"| names | of the {len(OPERATORS)} that MXNet 1.9.1 registers |\n", "|---:|---|\n"]
    lines += [f"| {len(by_state[key])} | {text} |\n" for key, text in _STATES.items()]
    if by_state[None]:
        lines.append(f"| {len(by_state[None])} | missing: {' '.join(by_state[None])} |\n")
    for title, classes in families().items():
        lines.append(f"\n## {title}\n\n")
        for cls in classes:
            aliases = f" Also {', '.join(f'`{alias}`' for alias in cls.aliases)}." if cls.aliases else ""
            lines.append(f"- `{call_of(cls)}`: {sentence(cls)}{aliases}\n{arrays_of(cls)}")
            if (pair := example(cls.name)) is not None:
                lines.append(f"  - `{pair[0]}` is `{pair[1]}`.\n")
    lines.append("\n## Provided as functions\n\n")
    lines += [f"- `{name}`: {FUNCTIONS[name]}\n" for name in sorted(by_state["function"])]
    lines.append("\n## Not provided\n")
    reasons: dict[str, list[str]] = defaultdict(list)
    for name in by_state["excluded"]:
        reasons[EXCLUDED[name]].append(name)
    lines += [f"\n{reason[0].upper()}{reason[1:]}:\n\n{words(names)}" for reason, names in sorted(reasons.items())]
    for title, key in (("Gradients", "gradient"), ("Sparse names", "sparse"), ("`mx.np` and `mx.npx`", "numpy")):
        lines.append(f"\n## {title}\n\n{words(by_state[key])}")
    return "".join(lines)


def main() -> None:
    """Write the page."""
    FILE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
