"""Run a written module on stored inputs; a program for an interpreter that has torch. flowmx does not import it.

Usage: run_module.py FOLDER CLASS

FOLDER has module.py, state.safetensors, inputs.npz and heads.npz; results.npz is written there.
"""
# mypy: ignore-errors

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch

_DTYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "BOOL": "?"}


def read_state(path):
    """Read a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    state = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        content = bytearray(data[8 + length + begin : 8 + length + end])
        if entry["dtype"] == "BF16":
            tensor = torch.frombuffer(content, dtype=torch.bfloat16)
        else:
            tensor = torch.from_numpy(np.frombuffer(content, _DTYPES[entry["dtype"]]))
        state[name] = tensor.reshape(entry["shape"])
    return state


def read_arrays(path):
    """Read the arrays of a file in order."""
    with np.load(path) as file:
        return [torch.from_numpy(file[name]) for name in sorted(file.files)]


def load_module(path, name, is_double=False):
    """Return an instance of a class of a file, which computes in float64 if ``is_double`` is set."""
    text = path.read_text(encoding="utf-8")
    if is_double:
        text = text.replace(".float()", ".double()").replace("torch.float32", "torch.float64")
    content = {"__name__": "module"}
    exec(compile(text, str(path), "exec"), content)
    return content[name]()


def as_list(outputs):
    """Return the outputs of a module as a list."""
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def gradients(model, inputs, heads):
    """Return the gradients of parameters and inputs, in training mode and float64, without dropout."""
    model.double().train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
        if isinstance(layer, torch.nn.RNNBase):
            layer.dropout = 0.0
    inputs = [each.double() if each.dtype == torch.float32 else each for each in inputs]
    for each in inputs:
        each.requires_grad_(each.is_floating_point())
    outputs = as_list(model(*inputs))
    pairs = [(out, head) for out, head in zip(outputs, heads, strict=True) if out.requires_grad]
    torch.autograd.backward([out for out, _ in pairs], [head.to(out.dtype) for out, head in pairs])
    result = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
    result.update({f"input {index}": each.grad for index, each in enumerate(inputs) if each.requires_grad})
    values = {**dict(model.named_parameters()), **{f"input {i}": each for i, each in enumerate(inputs)}}
    return {
        f"gradient:{name}": torch.zeros_like(values[name]) if value is None else value for name, value in result.items()
    }


def main(folder, name):
    """Run the module."""
    torch.set_num_threads(1)
    folder = Path(folder)
    model = load_module(folder / "module.py", name)
    model.load_state_dict(read_state(folder / "state.safetensors"))
    inputs, heads = read_arrays(folder / "inputs.npz"), read_arrays(folder / "heads.npz")
    with torch.no_grad():
        outputs = as_list(model.eval()(*inputs))
    results = {f"output:{index}": output for index, output in enumerate(outputs)}
    if heads:
        model = load_module(folder / "module.py", name, is_double=True)
        model.load_state_dict(read_state(folder / "state.safetensors"))
        results.update(gradients(model, inputs, heads))
    np.savez(folder / "results.npz", **{key: value.detach().numpy() for key, value in results.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
