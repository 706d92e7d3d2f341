"""Megabytes in addition to parameters, gradients and data, with each system's most economical settings.

    python best_memory.py SYSTEM NETWORK PHASE [BATCH]

NETWORK is one of ``networks.py``, ``transformer`` (128 tokens), or for predictions ``unet`` from ``slices.py``.
PHASE is ``predict``, ``train``, or ``save``: a training step that trades time for memory. flowmx and MXNet report
their plans: flowmx predicts in slices and trains within 0.3 of its memory; MXNet fuses operators and mirrors. PyTorch
has no plan: its figure is the growth of peak resident memory in a run, less the gradients. It predicts in inference
mode with channels last, and saves memory by checkpoints, one for each block, or for each layer with its activation.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import budget
import networks
import resident
import slices

MIB = 2**20
TOKENS = 128


def planned(mx: Any, name: str, phase: str, batch: int) -> float:
    """Return the figure of flowmx or MXNet."""
    side = TOKENS if name == "transformer" else 299 if name == "inception_v3" else 224
    if phase == "predict":
        net, side = slices.symbol(mx, name)
        return planned_mb(slices.bind(mx, net, side, batch))
    net, shapes = budget.network(mx, name, batch, side)
    executor = budget.bind(mx, net, shapes)
    if phase == "save" and mx.__name__ == "flowmx":
        with mx.engine.using(exec_memory_budget=executor.plan.internal_bytes() * 3 // 10):
            executor = budget.bind(mx, net, shapes)
    return planned_mb(executor)


def planned_mb(executor: Any) -> float:
    """Return the megabytes of the plan."""
    plan = getattr(executor, "plan", None)
    return slices.planned(executor) if plan is None else plan.internal_bytes() / MIB


def torch_transformer(torch: Any) -> list[Any]:
    """Return the blocks of ``networks.transformer`` as modules, and the classifier."""
    nn, width = torch.nn, networks.WIDTH

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.read, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            shape = (*x.shape[:2], 3, networks.HEADS, -1)
            parts = self.read(self.norm(x)).reshape(shape).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts)
            x = x + self.project(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(nn.functional.gelu(self.up(self.inner_norm(x))))

    return [*[Block() for _ in range(networks.BLOCKS)], nn.Linear(width, networks.WORDS)]


def torch_unet(torch: Any) -> Any:
    """Return the network of ``slices.unet`` as a module that releases each value after its last use."""
    nn = torch.nn

    def block(inside: int, filters: int) -> Any:
        layers: list[Any] = []
        for width in (inside, filters):
            layers += [nn.Conv2d(width, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(True)]
        return nn.ModuleList(layers)

    class UNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            widths = (32, 64, 128, 256, 512)
            self.down = nn.ModuleList([block(*each) for each in zip((3, *widths), widths, strict=False)])
            back = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.ups = nn.ModuleList([nn.ConvTranspose2d(wide, each, 2, 2, bias=False) for wide, each in back])
            self.up = nn.ModuleList([block(wide, each) for wide, each in back])
            self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: Any) -> Any:
            skips: list[Any] = []
            for at, layers in enumerate(self.down):
                x = self.pool(x) if at else x
                for layer in layers:
                    x = layer(x)
                skips.append(x)
            skips.pop()
            for up, layers in zip(self.ups, self.up, strict=True):
                x = torch.cat([up(x), skips.pop()], 1)
                for layer in layers:
                    x = layer(x)
            return self.out(x)

    return UNet()


def torch_parts(torch: Any, layers: Any) -> list[Any]:
    """Return the layers of an image network as modules, each with the activations and norms after it."""
    parts: list[list[Any]] = []
    for layer in layers:
        if not parts or type(layer).__name__ not in ("ReLU", "ReLU6", "BatchNorm2d"):
            parts.append([])
        parts[-1].append(layer)
    return [torch.nn.Sequential(*each) for each in parts]


def measured(torch: Any, name: str, phase: str, batch: int) -> float:
    """Return the figure of PyTorch."""
    from torch.utils.checkpoint import checkpoint

    side = 299 if name == "inception_v3" else 224
    if name == "transformer":
        parts, x = torch_transformer(torch), torch.randn(batch, TOKENS, networks.WIDTH)
    elif name == "unet":
        parts, x = [torch_unet(torch)], torch.randn(batch, 3, 128, 128)
    else:
        layers = {**networks.NETWORKS, **networks.LATER}[name]
        parts, x = torch_parts(torch, networks.module(torch, layers, side)), torch.randn(batch, 3, side, side)
    net = torch.nn.Sequential(*parts)
    if phase == "predict":
        net = net.eval()
        if name != "transformer":
            net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    label = torch.zeros(x.shape[0] if x.dim() == 4 else x.shape[:2].numel(), dtype=torch.long)

    def run() -> None:
        if phase == "predict":
            with torch.inference_mode():
                net(x)
            return
        y = x
        for part in parts:
            y = checkpoint(part, y, use_reentrant=False) if phase == "save" else part(y)
        torch.nn.functional.cross_entropy(y.flatten(0, -2), label).backward()

    batch_x, x = x, x[:1]
    whole, label = label, label[: len(label) // batch]
    run()  # allocations that happen once
    x, label = batch_x, whole
    net.zero_grad(set_to_none=True)
    resident.reset_peak()
    before = resident.resident("VmRSS")
    run()
    gradients = sum(each.grad.nbytes for each in net.parameters() if each.grad is not None)
    return (resident.resident("VmHWM") - before - gradients) / MIB


def main() -> None:
    """Print the figure as JSON."""
    system, name, phase = sys.argv[1:4]
    batch = int((*sys.argv[4:5], "64")[0])
    if phase == "save":
        os.environ["MXNET_BACKWARD_DO_MIRROR"] = "1" if system == "mxnet" else "0"
    if system == "flowmx" and phase == "predict":
        os.environ["FLOWMX_EXEC_SLICE"] = "auto"
    module = importlib.import_module(system)
    find = measured if system == "torch" else planned
    print(json.dumps({"mb": find(module, name, phase, batch)}))


if __name__ == "__main__":
    main()
