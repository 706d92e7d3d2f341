"""The parameters of a Gluon network in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flowmx import ndarray as nd
from flowmx.checkpoint.content import CheckpointError
from flowmx.ndarray import NDArray


def by_name(net: Any) -> dict[str, Any]:
    """Return the parameters of a block by attribute path, or those of a ParameterDict by renumbered name.

    The automatic names of blocks, such as ``dense3``, differ between two networks of one process; paths do not. A
    parameter that has no path has its name, without the block's prefix.
    """
    if not hasattr(net, "collect_params"):
        return _renumbered(net)
    paths = {param: path for path, param in reversed(net._collect_params_with_prefix().items())}
    return {paths.get(param, name.removeprefix(net.prefix)): param for name, param in net.collect_params().items()}


def _renumbered(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by names in which the blocks of each kind are counted from 0, in the order of the mapping."""
    numbers: dict[tuple[str, str], dict[str, str]] = {}

    def renumber(match: re.Match[str]) -> str:
        kind = numbers.setdefault((match.string[: match.start()], match[1]), {})
        return f"{match[1]}{kind.setdefault(match[2], str(len(kind)))}_"

    renamed = {re.sub(r"([a-z]+)(\d+)_", renumber, name): param for name, param in params.items()}
    return renamed if len(renamed) == len(params) else dict(params.items())


def arrays(params: Mapping[str, Any], leads: bool) -> Iterator[tuple[str, NDArray]]:
    """Yield (key, array) for all parameters. Trained parameters, which all devices and workers share, appear once.

    Args:
        params: the parameters.
        leads: whether this worker saves the shared parameters.
    """
    for name, param in params.items():
        copies = param.list_data()
        if param.grad_req == "null":
            yield from ((f"data {name} {device}", array) for device, array in enumerate(copies))
        elif leads:
            yield f"data {name}", copies[0]
        if param.grad_req == "add":
            yield from ((f"grad {name} {device}", array) for device, array in enumerate(param.list_grad()))


def describe(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes of parameters, and which gradients have not been used in an update."""
    return {
        "shapes": {name: list(param.shape) for name, param in params.items()},
        "fresh": {
            name: [param._is_fresh(ctx) for ctx in param.list_ctx()]
            for name, param in params.items() if param.grad_req != "null"
        },
    }  # fmt: skip


def restore(params: Mapping[str, Any], arrays: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """Enqueue writes of parameters and accumulated gradients.

    Raises:
        CheckpointError: the arrays belong to another network.
    """
    _check(params, description["shapes"])
    for name, param in params.items():
        if param._arrays is None:
            param.shape = tuple(description["shapes"][name])
            param._finish_deferred_init()
        for device, array in enumerate(param.list_data()):
            value = arrays.get(f"data {name}", arrays.get(f"data {name} {device}"))
            if value is not None:  # only the leading worker saves shared parameters
                array[:] = nd.from_numpy(value)
        if param.grad_req == "add":
            _restore_gradients(name, param, arrays, description["fresh"][name])


def _restore_gradients(name: str, param: Any, arrays: Mapping[str, Any], fresh: list[bool]) -> None:
    for device, (ctx, grad) in enumerate(zip(param.list_ctx(), param.list_grad(), strict=True)):
        grad[:] = nd.from_numpy(arrays[f"grad {name} {device}"])
        if not fresh[device]:
            param._mark_used(ctx)


def _check(params: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    if params.keys() != shapes.keys():
        differing = sorted(params.keys() ^ shapes.keys())
        raise CheckpointError(
            f"the checkpoint has the parameters of another network: {differing[:5]} are in only one of them"
        )
    for name, param in params.items():
        current, saved = param.shape or (), tuple(shapes[name])
        if len(current) == len(saved) and all(a in (b, 0, -1) for a, b in zip(current, saved, strict=True)):
            continue
        if current:
            raise CheckpointError(
                f"the checkpoint has {name!r} with shape {saved}, but the network has {current}: it belongs to "
                "another network"
            )
