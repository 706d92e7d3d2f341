"""Models with the weights in a folder of Hugging Face's Transformers."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar, overload

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.errors import DataError, MismatchError, ParameterError
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.calls import Pretrained, without_nones
from flowmx.gluon.model_zoo.gguf.pretrained import from_gguf
from flowmx.gluon.model_zoo.huggingface.families import FAMILIES, Family, classes
from flowmx.gluon.model_zoo.huggingface.folder import Arrays, Config, read_arrays, read_config
from flowmx.gluon.parameter import Contexts, Parameter, _fits
from flowmx.gluon.utils import brief_list
from flowmx.initializer import Normal
from flowmx.suggestions import did_you_mean
from flowmx.symbol import Symbol

__all__ = ["as_symbol", "from_pretrained"]

N = TypeVar("N", bound=HybridBlock)


@overload
def from_pretrained(
    folder: str | os.PathLike[str], model: type[N], ctx: Contexts = None, dtype: Any = None, **options: Any
) -> N: ...  # fmt: skip


@overload
def from_pretrained(
    folder: str | os.PathLike[str], model: None = None, ctx: Contexts = None, dtype: Any = None, **options: Any
) -> Pretrained: ...


def from_pretrained(
    folder: str | os.PathLike[str], model: type[HybridBlock] | None = None, ctx: Contexts = None, dtype: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Return a model with the weights in a folder of Hugging Face's Transformers.

    The models are BERT, GPT-2, ViT, and Llama with its relatives SmolLM2, TinyLlama, Mistral, Qwen 2, Qwen 3 and
    Gemma 3.

    The folder has ``config.json``, and ``model.safetensors``, its shards with ``model.safetensors.index.json``, or
    ``pytorch_model.bin``. Tokenizers are not read, and nothing is downloaded.

    A GGUF file, ``NAME.gguf``, may be in place of the folder, with a model of the architecture ``llama`` (also
    Mistral), ``qwen2``, ``qwen3``, ``gemma3`` or ``gpt2``. Its matrices stay quantized, and are constants, unless
    ``dtype`` is set. Data are rounded to 16 bits before they are multiplied by them, or to 8 with
    ``data_bits=8``, which takes less time for prompts and many texts, and changes the logits by a few percent.

    Args:
        folder: the folder, or the GGUF file.
        model: the class of the model, to train another head than that of the folder, such as ``text.BERTClassifier``
            (default: that of the folder). Weights of a head or pooler that are not in the folder are initialized, with
            a warning.
        ctx: the device or devices of the weights (default: the CPU).
        dtype: the element type of the weights (default: that in the files).
        **options: arguments of the model in place of those in ``config.json``, such as ``classes`` or ``dropout``.

    Raises:
        ValueError: the folder is of an unsupported model, its config is invalid, or weights are missing, unknown, or of
            a shape that differs from the config.
        TypeError: the model does not take an option.
        OSError: a file is missing, or cannot be read.

    Example:
        >>> text = mx.gluon.model_zoo.text
        >>> net = mx.gluon.model_zoo.from_pretrained("bert", text.BERTClassifier, classes=3)  # doctest: +SKIP
    """
    path = Path(folder)
    if path.suffix == ".gguf":
        return _checked(from_gguf(path, ctx, dtype, **options), model, path)
    config = read_config(path)
    family = _family(config)
    kind = _kind(config, family) if model is None else model
    if kind not in family.heads:
        raise ParameterError(
            f"from_pretrained: model is {getattr(kind, '__name__', repr(kind))}, but {path} is of the type "
            f"{config.text('model_type')!r}, expected {' or '.join(each.__name__ for each in family.heads)}"
        )
    arrays = family.arrays(read_arrays(path))
    net = kind(**_options(kind, config, family, arrays) | options)
    _load(net, arrays, family, path, ctx, dtype)
    return net


def _checked(net: HybridBlock, model: type[HybridBlock] | None, path: Path) -> HybridBlock:
    """Return a network if it is of the class that was requested, if any.

    Raises:
        ParameterError: it is not.
    """
    if model is not None and not isinstance(net, model):
        raise ParameterError(f"from_pretrained: model is {model.__name__}, but {path} is a {type(net).__name__}")
    return net


def as_symbol(
    folder: str | os.PathLike[str], names: Collection[str] | None = None
) -> tuple[Symbol, dict[str, nd.NDArray]]:
    """Return the model in a folder as a symbol with parameters.

    Args:
        folder: as for :func:`from_pretrained`.
        names: the inputs, among ``tokens``, ``token_types`` and ``padding`` for texts, ``images`` for images (default:
            all of GPT-2 and ViT; ``tokens`` and ``padding`` of BERT).

    Raises:
        ValueError: an input is unknown, or the first is missing; others as for :func:`from_pretrained`.
        OSError: as for :func:`from_pretrained`.
    """
    config = read_config(Path(folder))
    inputs = _family(config).inputs(config)
    names = set(inputs) - {"token_types"} if names is None else names
    if not set(names) <= inputs.keys() or next(iter(inputs)) not in names:
        raise ParameterError(f"{folder}: the inputs are {', '.join(names)}, expected some of {', '.join(inputs)}")
    net: Any = from_pretrained(folder)
    variables = {name: sym.var(name, shape=shape) for name, shape in inputs.items() if name in names}
    outputs = net(*without_nones(*(variables.get(name) for name in inputs)))
    symbol = sym.Group(list(outputs)) if isinstance(outputs, tuple) else outputs
    return symbol, {name: parameter.data() for name, parameter in net.collect_params().items()}


def _family(config: Config) -> Family:
    name = config.text("model_type")
    if name not in FAMILIES:
        raise DataError(
            f"{config.source}: model_type is {name!r}, expected one of {', '.join(FAMILIES)}"
            f"{did_you_mean(name, FAMILIES)}: for other models, convert the weights with mx.contrib.torch"
        )
    return FAMILIES[name]


def _kind(config: Config, family: Family) -> type[HybridBlock]:
    """Return the class for the architecture of a config."""
    names = config.values.get("architectures") or [next(iter(family.architectures))]
    name = names[0] if isinstance(names, list) else names
    if not isinstance(name, str) or name not in family.architectures:
        raise DataError(
            f"{config.source}: architectures has {name!r}, expected one of {', '.join(family.architectures)}; to load "
            f"the weights without their head, pass model={family.body_class.__name__}"
        )
    return family.architectures[name]


def _options(kind: type[HybridBlock], config: Config, family: Family, arrays: Arrays) -> dict[str, Any]:
    """Return the arguments of a class for a config."""
    options, takes = family.options(config), inspect.signature(kind).parameters
    if options["num_layers"] > len(arrays):
        raise DataError(
            f"{config.source}: the model has {options['num_layers']} layers, but the folder only {len(arrays)} arrays"
        )
    if kind is not family.body_class:
        options |= family.head_options(config)
    if "classes" in takes:
        options["classes"] = classes(config)
    if config.values.get("classifier_dropout") is not None and "head_dropout" in takes:
        options["head_dropout"] = config.probability("classifier_dropout", 0.0)
    if "pooler" in takes:
        options["pooler"] = any(name.startswith("pooler.") for name in arrays)
    return options


def _load(net: HybridBlock, arrays: Arrays, family: Family, path: Path, ctx: Contexts, dtype: Any) -> None:
    """Set the parameters of a network to arrays; initialize those of a head or pooler that are missing."""
    kind = type(net)
    names: dict[Parameter, str] = {}
    for name, parameter in net._collect_params_with_prefix().items():
        names.setdefault(parameter, name)
    sources = {parameter: family.name_of(name, kind, arrays) for parameter, name in names.items()}
    missing = [parameter for parameter, name in sources.items() if name not in arrays]
    lost = [sources[each] for each in missing if not family.is_head(names[each], kind)]
    if lost:
        raise DataError(f"{path} has no weight {lost[0]!r}, but {brief_list(arrays)}: is it another model's?")
    unread = [name for name in arrays if name not in sources.values() and not family.ignored.fullmatch(name)]
    if unread:
        raise DataError(f"{path} has the weight {unread[0]!r}, which {kind.__name__} does not have")
    for parameter, name in sources.items():
        if name in arrays:
            _set(parameter, arrays[name], f"{path}: {name!r}", ctx, dtype)
    for parameter in missing:
        parameter.cast(next(iter(sources)).dtype)
        parameter.initialize(Normal(0.02), ctx=ctx)
    if missing:
        warnings.warn(
            f"from_pretrained: {path} does not have {brief_list(names[each] for each in missing)} of "
            f"{kind.__name__}: they are initialized, and need training",
            stacklevel=3,
        )


def _set(parameter: Parameter, array: Any, source: str, ctx: Contexts, dtype: Any) -> None:
    if not _fits(array.shape, parameter.shape or array.shape):
        raise MismatchError(
            f"{source} has shape {array.shape}, expected {parameter.shape}: config.json or the options do not fit it"
        )
    parameter.cast(array.dtype if dtype is None else dtype)
    parameter._load_init(nd.array(array, dtype=parameter.dtype), ctx)
