"""Open artifacts with MXNet or flowmx, and write their content: ``python corpus_outputs.py LIBRARY JOBS TARGET``.

Each line of JOBS is a JSON list: a number, "arrays", "records", "rows" or "symbol", the file, the parameters or null,
and input shapes. TARGET is an .npz file with the arrays, or the outputs of a forward pass, by number; or with the
error. Symbols without parameters get random ones, the same in both.
"""

import importlib
import json
import sys
import zlib
from pathlib import Path

import numpy as np


def parameters(symbol, name, shape, arrays, mx):
    """Return the parameter of a file, or a random one that depends only on its name."""
    if name in arrays:
        return arrays[name].astype("float32")
    draw = np.random.RandomState(zlib.crc32(name.encode()))
    if name.endswith(("gamma", "_var")):
        return mx.nd.array(draw.uniform(0.5, 1.5, shape))
    scale = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
    return mx.nd.array(draw.normal(0, scale, shape))


def outputs(mx, file, params, shapes):
    """Return the outputs of a symbol."""
    symbol = mx.sym.load(file)
    arrays = {name.split(":", 1)[-1]: array for name, array in (mx.nd.load(params).items() if params else ())}
    sizes = {name: arrays[name].shape for name in symbol.list_arguments() if name in arrays}
    sizes.update({name: tuple(shape) for name, shape in shapes.items()})
    arguments, _, states = symbol.infer_shape(**sizes)
    values = [
        {name: parameters(symbol, name, shape, arrays, mx) for name, shape in zip(names, sizes)}  # noqa: B905
        for names, sizes in ((symbol.list_arguments(), arguments), (symbol.list_auxiliary_states(), states))
    ]
    executor = symbol.bind(mx.cpu(), values[0], aux_states=values[1], grad_req="null")
    return executor.forward(is_train=False)


def contents(mx, file):
    """Return the arrays of a file in the order of their names."""
    arrays = mx.nd.load(file)
    return [arrays[name] for name in sorted(arrays)] if isinstance(arrays, dict) else arrays


def records(mx, file):
    """Return the lengths and checksums of the records of a RecordIO file."""
    reader, rows = mx.recordio.MXRecordIO(file, "r"), []
    while (record := reader.read()) is not None:
        rows.append([len(record), zlib.crc32(record)])
    return [mx.nd.array(np.array(rows, np.float64), dtype="float64")]


def rows(mx, file):
    """Return the sums of the rows and the labels of a file of LibSVM's format."""
    with Path(file).open() as lines:
        width = 1 + max(int(word.partition(":")[0]) for line in lines for word in line.split()[1:] if ":" in word)
    iterator = mx.io.LibSVMIter(data_libsvm=file, data_shape=(width,), batch_size=1)
    batches = [(batch.data[0].asnumpy().sum(), batch.label[0].asnumpy().sum()) for batch in iterator]
    return [mx.nd.array(batches)]


def main(library, jobs, target):
    mx = importlib.import_module(library)
    results = {}
    with Path(jobs).open() as lines:
        for line in lines:
            number, kind, file, params, shapes = json.loads(line)
            try:
                open_file = {"arrays": contents, "records": records, "rows": rows}.get(kind)
                arrays = outputs(mx, file, params, shapes) if open_file is None else open_file(mx, file)
                results.update({f"{number}.{at}": array.asnumpy() for at, array in enumerate(arrays)})
            except Exception as error:  # a refusal is a result
                results[f"{number}.error"] = np.array(f"{type(error).__name__}: {error}"[:300])
    np.savez(target, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
