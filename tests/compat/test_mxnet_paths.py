"""Every module path of MXNet 1.9.1 (tests/fixtures/mxnet_paths.txt) is one of ``mxnet``, with the names that it has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import flowmx
from flowmx.compat.paths import PATHS
from tests.rows import rows
from tests.surface import excluded

FILE = Path(__file__).parent.parent / "fixtures" / "mxnet_paths.txt"
RECORDED: dict[str, list[str]] = {
    path: names.split() for path, _, names in (line.partition(":") for line in FILE.read_text("utf-8").splitlines())
}

_PATHS_LEFT_OUT = {
    "the inside of mx.np; its functions on symbols are an object, mx.sym.np": """
        _numpy_op_doc numpy_dispatch_protocol numpy_op_fallback numpy_op_signature ndarray.numpy._api_internal
        ndarray.numpy._internal symbol.numpy symbol.numpy_extension
    """,
    "how MXNet talks to its C++ library": "_api_internal _ctypes _cy3 _ffi _global_var api cython",
    "functions that MXNet writes when it is imported; they are in the module above": """
        ndarray.gen_random symbol.gen_random
    """,
    "operators compiled by TVM": "space tvmop",
    "how MXNet's docstrings are written": "ndarray_doc symbol_doc",
    "ONNX, operator by operator; `mx.onnx` and `mx.contrib.onnx` read and write it": """
        contrib.onnx.onnx2mx onnx.mx2onnx
    """,
    "Lua's Torch, whose plugin MXNet's own packages were built without": "torch",
    "charts with a Bokeh of 2018; `mx.viz` and the dashboard draw": "notebook",
    "constants of data sets and embeddings that are fetched": """
        contrib.text._constants gluon.contrib.data._constants
    """,
}
PATHS_LEFT_OUT = {f"mxnet.{path}": reason for reason, paths in _PATHS_LEFT_OUT.items() for path in paths.split()}

_NAMES_LEFT_OUT = {
    "how MXNet talks to its C++ library": """
        base.MXCallbackList base.c2pyerror base.c_handle_array base.ctypes2buffer base.ctypes2numpy_shared
        base.get_last_ffi_error base.mx_float_p ndarray.ndarray.DLContext ndarray.ndarray.DLDataType
        ndarray.ndarray.DLManagedTensor ndarray.ndarray.DLTensor ndarray.ndarray.check_boolean_array_dimension
        util.get_cuda_compute_capability
    """,
    "functions that NumPy has no more (they are in numpy-financial)": """
        numpy.fallback.mirr numpy.fallback.npv numpy.fallback.ppmt numpy.fallback.pv numpy.fallback.rate
        numpy.multiarray.mirr numpy.multiarray.npv numpy.multiarray.ppmt numpy.multiarray.pv numpy.multiarray.rate
    """,
    "the inside of mx.np": """
        numpy_extension.classproperty
        numpy_extension.get_cuda_compute_capability numpy_extension.with_metaclass
        util.np_ufunc_legal_option util.wrap_np_binary_func util.wrap_np_unary_func
    """,
    "data sets and models that MXNet's own tests fetch": """
        test_utils.download_model test_utils.get_im2rec_path test_utils.get_mnist_pkl
    """,
    "arrays are sent between processes otherwise (`flowmx.gluon.data.workers`)": """
        gluon.data.dataloader.ConnectionWrapper gluon.data.dataloader.fetcher_loop_v1
        gluon.data.dataloader.rebuild_ndarray gluon.data.dataloader.rebuild_np_ndarray
        gluon.data.dataloader.reduce_ndarray gluon.data.dataloader.reduce_np_ndarray
        gluon.data.dataloader.worker_loop_v1
    """,
    "no separate name: an import, or a helper inside MXNet": """
        contrib.onnx.export_model_ contrib.onnx.get_model_metadata_ contrib.onnx.import_model_
        contrib.onnx.import_to_gluon_ gluon.model_zoo.vision.inception.make_aux model.SKLEARN_INSTALLED
    """,
}
NAMES_LEFT_OUT = {f"mxnet.{name}": reason for reason, names in _NAMES_LEFT_OUT.items() for name in names.split()}


NAMES_NOT_BROUGHT = [
    "mxnet.gluon.model_zoo.vision.mobilenet.LinearBottleneck", "mxnet.gluon.model_zoo.vision.mobilenet.RELU6",
    "mxnet.image.is_np_array", "mxnet.rnn.DataBatch", "mxnet.rnn.DataDesc", "mxnet.rnn.DataIter",
]  # fmt: skip
"""Names that MXNet's modules have but do not list in their ``__all__``, or only import."""


def is_left_out(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in PATHS_LEFT_OUT)


def is_there(path: str, name: str) -> bool:
    return hasattr(importlib.import_module(path), name) or any(excluded(each, name) for each in ("nd", "nd.contrib"))


def package(path):
    """The package of a path, below mxnet."""
    return path.removeprefix("mxnet.").partition(".")[0]


@pytest.fixture(scope="module", autouse=True)
def mxnet():
    before = {name for name in sys.modules if name.partition(".")[0] == "mxnet"}
    flowmx.install_as_mxnet()
    yield importlib.import_module("mxnet")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mxnet" and name not in before]:
        del sys.modules[name]


@rows("path", [path for path in RECORDED if path != "mxnet" and not is_left_out(path)], of=package)
def test_a_path_is_flowmx_own_module_with_its_names(path):
    module = importlib.import_module(path)
    assert module is sys.modules[f"flowmx{path.removeprefix('mxnet')}"]
    missing = {f"{path}.{name}" for name in RECORDED[path] if not is_there(path, name)}
    assert missing == {name for name in NAMES_LEFT_OUT if name.rpartition(".")[0] == path}


@rows("path", [path for path in RECORDED if path != "mxnet" and not is_left_out(path)], of=package)
def test_a_star_import_imports_the_same_names_as_in_mxnet(path):
    brought, module = {}, importlib.import_module(path)
    # Names that a module makes on demand would else come only where somebody has asked for them before.
    assert hasattr(module, "__all__") or not hasattr(module, "__getattr__")
    exec(f"from {path} import *", brought)
    there = {name for name in RECORDED[path] if is_there(path, name) and not excluded("nd.contrib", name)}
    assert there - brought.keys() == {
        name.rpartition(".")[2] for name in NAMES_NOT_BROUGHT if name.rpartition(".")[0] == path
    }


@rows("path", PATHS_LEFT_OUT, of=package)
def test_omitted_paths_do_not_exist(path):
    with pytest.raises(ModuleNotFoundError, match=path):
        importlib.import_module(path)


def test_the_package_has_mxnets_names_and_version(mxnet):
    assert [name for name in RECORDED["mxnet"] if not hasattr(mxnet, name)] == []
    assert mxnet.__version__ == "1.9.1" != flowmx.__version__
    assert mxnet.nd is flowmx.nd
    assert set(dir(flowmx)) <= set(dir(mxnet))


@rows("path", PATHS, of=package)
def test_modules_that_the_table_names_can_be_imported(path):
    assert dir(importlib.import_module(f"flowmx.{path}"))
    for source in PATHS[path]:
        importlib.import_module(source)


def test_a_path_is_an_attribute_of_the_module_above():
    assert flowmx.image.image.imread is flowmx.image.imread
    assert flowmx.gluon.data.dataloader.DataLoader is flowmx.gluon.data.DataLoader
    assert flowmx.amp.list_lp16_ops("float16") == flowmx.contrib.amp.lists.symbol_fp16.FP16_FUNCS
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = flowmx.gluon.data.dataloader.nonsense
    with pytest.raises(AttributeError, match="nonsense"):
        _ = flowmx.nd.nonsense


def test_an_import_of_a_module_leaves_a_function_of_its_name_where_it_is():
    importlib.import_module("mxnet.gluon.model_zoo.vision.alexnet")
    assert flowmx.gluon.model_zoo.vision.alexnet.__name__ == "alexnet"
    assert callable(flowmx.gluon.model_zoo.vision.alexnet)


LOADED = {
    line.partition(":")[0]: line.partition(":")[2].split()
    for line in FILE.with_name("mxnet_loaded.txt").read_text("utf-8").splitlines()
}


def test_modules_that_mxnet_loads_are_loaded():
    there = {name for name in sys.modules if name.startswith("mxnet.")}
    assert {name for name in LOADED if not is_left_out(name)} <= there
    assert all(sys.modules[name] is sys.modules[f"flowmx{name.removeprefix('mxnet')}"] for name in there)


@rows("path", [path for path, names in LOADED.items() if names], of=package)
def test_functions_are_in_the_namespaces_that_packages_look_through(path):
    names = {name for name in LOADED[path] if is_there(path, name) and not excluded("nd.contrib", name)}
    missing = names - vars(sys.modules[path]).keys()
    assert missing == {name.rpartition(".")[2] for name in NAMES_LEFT_OUT if name.rpartition(".")[0] == path}


def test_attributes_with_the_name_of_a_module_are_kept():
    assert flowmx.nd.op is flowmx.nd._internal is importlib.import_module("flowmx.ndarray.functions")
    assert flowmx.sym.op is importlib.import_module("flowmx.symbol.functions")
    assert callable(flowmx.gluon.model_zoo.vision.alexnet)


def test_the_package_keeps_its_names(mxnet):
    assert {"nd", "sym", "gluon", "cpu", "Context", "autograd", "kv", "mod", "random"} <= vars(mxnet).keys()
    brought = {}
    exec("from mxnet import *", brought)
    assert {"nd", "libinfo", "error", "executor_manager", "test_utils", "image", "np"} <= brought.keys()
