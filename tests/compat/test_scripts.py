"""Small modules that MXNet's scripts use: mx.context, util, runtime, log, base, registry, name, attribute."""

import asyncio
import logging
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings


def test_context():
    assert mx.context.cpu is mx.cpu and mx.context.Context("cpu", 1) == mx.cpu(1)
    with mx.Context(mx.cpu(2)):
        assert mx.context.current_context() == mx.cpu(2)


@pytest.mark.skipif(mx.num_gpus() > 0, reason="this machine has a GPU")
@pytest.mark.parametrize("ask", [mx.context.gpu_memory_info, mx.util.get_gpu_memory])
def test_a_missing_gpu(ask):
    with pytest.raises(mx.MXNetError, match=r"gpu\(1\) does not exist"):
        ask(1)


def test_variables_of_the_environment(monkeypatch):
    monkeypatch.delenv("FLOWMX_EXEC_NUM_TEMP", raising=False)
    mx.util.setenv("FLOWMX_EXEC_NUM_TEMP", "3")
    assert mx.util.getenv("FLOWMX_EXEC_NUM_TEMP") == "3" and settings.get().exec_num_temp == 3
    mx.util.setenv("FLOWMX_EXEC_NUM_TEMP", None)
    assert mx.util.getenv("FLOWMX_EXEC_NUM_TEMP") is None and settings.get().exec_num_temp == 1


def test_folders(tmp_path):
    mx.util.makedirs(tmp_path / "a" / "b")
    mx.util.makedirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_modules_of_functions():
    @mx.util.set_module("elsewhere")
    def function():
        pass

    assert function.__module__ == "elsewhere"


def test_numpy_semantics_apply_where_requested():
    assert not mx.is_np_array() and not mx.util.is_np_shape() and mx.util.get_gpu_count() == mx.num_gpus()
    with mx.np_shape(False), mx.np_array(False):
        assert mx.util.set_np_shape(False) is False
    with mx.np_shape(), mx.np_array():
        assert mx.is_np_array() and mx.util.is_np_shape()
    assert mx.use_np(mx.is_np_array)() and mx.use_np_shape(mx.util.is_np_shape)()
    mx.util.set_np()
    assert mx.is_np_array()
    mx.util.reset_np()
    mx.util.set_np(shape=False, array=False)
    assert not mx.is_np_array()
    with pytest.raises(ValueError, match="need NumPy's shapes"):
        mx.util.set_np(shape=False)


def test_features():
    features = mx.runtime.Features()
    assert features.is_enabled("dist_kvstore") and not features.is_enabled("TVM_OP")
    assert features.is_enabled("CUDA") == (mx.num_gpus() > 0)
    assert repr(features["LAPACK"]) == "✔ LAPACK" and "✖ CAFFE" in repr(features)
    assert len(mx.runtime.feature_list()) == 32
    with pytest.raises(RuntimeError, match="unknown feature 'wings'"):
        features.is_enabled("wings")


def test_loggers(tmp_path, capsys):
    mx.log.get_logger("flowmx.test.one", level=mx.log.INFO).info("at %d", 3)
    mx.log.get_logger("flowmx.test.one").debug("left out")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("I") and line.endswith("] at 3") and "test_scripts.py:test_loggers:" in line
    file = tmp_path / "log"
    with pytest.warns(DeprecationWarning, match="use get_logger"):
        logger = mx.log.getLogger("flowmx.test.two", file)
    logger.warning("kept")
    assert file.read_text() == "kept\n"
    for handler in logger.handlers:
        handler.close()
    assert mx.log.get_logger() is logging.getLogger()


def test_types_of_numbers():
    assert isinstance(np.float32(1), mx.base.numeric_types) and isinstance(np.int64(1), mx.base.integer_types)
    assert mx.base.MXNetError is mx.MXNetError and isinstance("a", mx.base.string_types)


def test_custom_registries():
    class Planner:
        def __init__(self, depth=1):
            self.depth = depth

    register = mx.registry.get_register_func(Planner, "planner")
    alias = mx.registry.get_alias_func(Planner, "planner")
    create = mx.registry.get_create_func(Planner, "planner")

    @alias("deep", "deeper")
    @register
    class DeepPlanner(Planner):
        pass

    assert set(mx.registry.get_registry(Planner)) == {"deepplanner", "deep", "deeper"}
    assert create("Deep", depth=3).depth == 3 and create('["deeper", {"depth": 4}]').depth == 4
    assert create(planner="deepplanner").depth == 1
    with pytest.raises(ValueError, match="unknown planner 'deepest'"):
        create("deepest")
    assert mx.registry.get_registry(mx.optimizer.Optimizer)["sgd"] is mx.optimizer.SGD


def test_the_current_scope():
    with mx.name.Prefix("stage_"):
        assert mx.name.NameManager.current.get(None, "fc") == "stage_fc0"
    with mx.AttrScope(ctx_group="dev1"):
        assert mx.AttrScope.current.get({"lr_mult": "2"}) == {"ctx_group": "dev1", "lr_mult": "2"}
    assert mx.AttrScope.current.get(None) == {}


def test_old_names_of_blocks_methods(tmp_path):
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    with pytest.warns(DeprecationWarning, match="use save_parameters"):
        net.save_params(tmp_path / "net.params")
    other = mx.gluon.nn.Dense(2, in_units=3)
    with pytest.warns(DeprecationWarning, match="use load_parameters"):
        other.load_params(tmp_path / "net.params")
    x = mx.nd.ones((1, 3))
    assert mx.test_utils.same(net(x), other(x))
    assert mx.gluon.parameter.ParameterDict is mx.gluon.ParameterDict


def test_compiled_before_it_is_called(tmp_path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4), mx.gluon.nn.Dense(2))
    net.initialize()
    with pytest.raises(ValueError, match="backend is missing"):
        net.optimize_for(mx.nd.ones((1, 3)))
    net.optimize_for(mx.nd.ones((1, 3)), backend="MKLDNN", static_alloc=True)
    names = net.export(str(tmp_path / "net"))
    block = mx.gluon.SymbolBlock.imports(names[0], ["data"], names[1])
    block.reset_ctx(mx.cpu(1))
    x = mx.nd.ones((2, 3))
    assert mx.test_utils.same(net(x), block(x.as_in_context(mx.cpu(1))))


def test_training_may_be_called_run_or_awaited():
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), name="softmax")
    module, data = mx.mod.Module(net), mx.io.NDArrayIter(np.ones((30, 4), np.float32), np.ones(30, np.float32), 10)
    assert repr(module.fit(data, num_epoch=1)) == "done"
    asyncio.run(module.fit(data, num_epoch=1))
    mx.run(module.fit(data, num_epoch=1))
    ((name, first),) = module.score(data, "acc")
    assert name == "accuracy"

    async def in_a_coroutine():
        data.reset()
        await module.fit(data, num_epoch=1)
        return await module.score(data, "acc")

    assert len(asyncio.run(in_a_coroutine())) == 1 and 0 <= first <= 1


def test_a_store_of_one_process_does_not_wait():
    mx.kv.create("local").barrier()


def test_a_script_configures_logging_itself(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, mxnet as mx\n"
        "logging.basicConfig(filename='train.log', level=logging.INFO, format='mine: %(message)s')\n"
        "logging.info('begin')\n"
    )
    subprocess.run([sys.executable, "-m", "flowmx", "run", str(script)], cwd=tmp_path, check=True, timeout=100)
    assert (tmp_path / "train.log").read_text() == "mine: begin\n"
