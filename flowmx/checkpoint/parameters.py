"""The parameters of a Gluon network in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowmx.checkpoint.content import CheckpointError
from flowmx.ndarray import NDArray


def by_name(net: Any) -> dict[str, Any]:
    """The parameters of a block, or of what ``collect_params`` returns, by names without the block's own prefix."""
    prefix = getattr(net, "prefix", "")
    params = net.collect_params() if hasattr(net, "collect_params") else net
    return {name.removeprefix(prefix): param for name, param in params.items()}


def arrays(params: Mapping[str, Any], leads: bool) -> Iterator[tuple[str, NDArray]]:
    """Iterate over (key, array) of all parameters; trained ones, equal on all devices and workers, only once.

    Args:
        params: the parameters.
        leads: True for the worker that saves what all workers share.
    """
    for name, param in params.items():
        own = param.list_data()
        if param.grad_req == "null":
            yield from ((f"data {name} {device}", array) for device, array in enumerate(own))
        elif leads:
            yield f"data {name}", own[0]
        if param.grad_req == "add":
            yield from ((f"grad {name} {device}", array) for device, array in enumerate(param.list_grad()))


def described(params: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of parameters, and which gradients wait for an update."""
    return {
        "shapes": {name: list(param.shape) for name, param in params.items()},
        "fresh": {
            name: [param._is_fresh(ctx) for ctx in param.list_ctx()]
            for name, param in params.items() if param.grad_req != "null"
        },
    }  # fmt: skip


def restore(params: Mapping[str, Any], found: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    """Enqueue setting parameters, and gradients that were being added up.

    Raises:
        CheckpointError: they are of another network.
    """
    _check(params, described["shapes"])
    for name, param in params.items():
        if param._arrays is None:
            param.shape = tuple(described["shapes"][name])
            param._finish_deferred_init()
        for device, array in enumerate(param.list_data()):
            value = found.get(f"data {name}", found.get(f"data {name} {device}"))
            if value is not None:  # the leading worker has what all have in common
                array[:] = value
        if param.grad_req == "add":
            _restore_gradients(name, param, found, described["fresh"][name])


def _restore_gradients(name: str, param: Any, found: Mapping[str, Any], fresh: list[bool]) -> None:
    for device, (ctx, grad) in enumerate(zip(param.list_ctx(), param.list_grad(), strict=True)):
        grad[:] = found[f"grad {name} {device}"]
        if not fresh[device]:
            param._mark_used(ctx)


def _check(params: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    if params.keys() != shapes.keys():
        differing = sorted(params.keys() ^ shapes.keys())
        raise CheckpointError(
            f"the checkpoint has the parameters of another network: {differing[:5]} are in one of them alone"
        )
    for name, param in params.items():
        known, saved = param.shape or (), tuple(shapes[name])
        if len(known) == len(saved) and all(a in (b, 0, -1) for a, b in zip(known, saved, strict=True)):
            continue
        if known:
            raise CheckpointError(
                f"the checkpoint has {name!r} with shape {saved}, and the network with {known}: it is of another one"
            )
