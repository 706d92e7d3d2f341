import dataclasses
import math
import warnings

import pytest

from flowmx import settings
from flowmx.settings import TABLE, SettingError, Settings


@pytest.fixture
def environ(monkeypatch):
    """The environment without settings, and the settings read from it afresh before and after."""
    import os

    for name in list(os.environ):
        if name.startswith(("FLOWMX_", "MXNET_", "DMLC_")):
            monkeypatch.delenv(name)
    settings.reload()
    yield monkeypatch
    monkeypatch.undo()
    settings.reload()


def test_defaults_are_those_of_the_fields():
    assert settings.load({}) == Settings()
    for row in TABLE.values():
        assert row.check(row.default) == row.default


def test_every_setting_is_documented():
    for row in TABLE.values():
        assert row.doc.endswith("."), row.name


def test_names_that_stand_for_others_are_taken_from_programs_as_from_the_environment():
    for each in dataclasses.fields(settings.Settings):
        for alias, value in each.metadata["aliases"].items():
            with settings.override(**{each.name: alias}):
                assert getattr(settings.get(), each.name) == settings.TABLE[each.name].parse(value)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("FLOWMX_CPU_WORKER_NTHREADS", "3", 3),
        ("FLOWMX_KVSTORE_BIGARRAY_BOUND", "1e6", 1_000_000),
        ("FLOWMX_EXEC_ENABLE_INPLACE", "0", False),
        ("FLOWMX_EXEC_ENABLE_INPLACE", "True", True),
        ("FLOWMX_ENGINE_CHECK", " true ", True),
        ("FLOWMX_ENGINE_TYPE", "NaiveEngine", "NaiveEngine"),
        ("FLOWMX_ENGINE_TYPE", "ThreadedEnginePooled", "ThreadedEngine"),
        ("FLOWMX_EXIT_TIMEOUT", "2", 2.0),
        ("FLOWMX_EXIT_TIMEOUT", "inf", math.inf),
        ("FLOWMX_CUDNN_AUTOTUNE_DEFAULT", "2", 2),
        ("FLOWMX_SEED", "7", 7),
        ("FLOWMX_SEED", "", None),
        ("FLOWMX_CPU_WORKER_NTHREADS", "", 1),
    ],
)
def test_reads_a_variable(variable, text, value):
    name = variable.removeprefix("FLOWMX_").lower()
    loaded = getattr(settings.load({variable: text}), name)
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("FLOWMX_CPU_WORKER_NTHREADS", "0", "an int of at least 1"),
        ("FLOWMX_CPU_WORKER_NTHREADS", "two", "an int of at least 1"),
        ("FLOWMX_CPU_WORKER_NTHREADS", "1.5", "an int"),
        ("FLOWMX_CPU_WORKER_NTHREADS", "inf", "an int"),
        ("FLOWMX_GPU_MEM_POOL_RESERVE", "101", "from 0 to 100"),
        ("FLOWMX_ENGINE_CHECK", "yes", "0, 1, true or false"),
        ("FLOWMX_ENGINE_TYPE", "FastEngine", "NaiveEngine, ThreadedEngine, ThreadedEnginePerDevice"),
        ("FLOWMX_EXIT_TIMEOUT", "nan", "a number of at least 0"),
        ("FLOWMX_PROFILER_MODE", "2", "one of 0, 1"),
        ("FLOWMX_SEED", "-1", "of at least 0"),
    ],
)
def test_an_invalid_value_names_the_variable_the_value_and_the_allowed_ones(variable, text, allowed):
    with pytest.raises(SettingError) as caught:
        settings.load({variable: text})
    for part in (variable, repr(text), allowed):
        assert part in str(caught.value)


def test_the_environment_is_read_once_and_again_on_reload(environ):
    environ.setenv("FLOWMX_EXEC_NUM_TEMP", "4")
    assert settings.get().exec_num_temp == 1
    assert settings.reload().exec_num_temp == 4
    assert settings.get() is settings.get()
    assert settings.sources()["exec_num_temp"] == "environment"
    assert settings.sources()["exec_match_range"] == "default"


def test_a_bad_value_leaves_the_settings_in_force(environ):
    before = settings.get()
    environ.setenv("FLOWMX_EXEC_NUM_TEMP", "many")
    with pytest.raises(SettingError):
        settings.reload()
    assert settings.get() is before


def test_override_nests_and_ends(environ):
    with settings.override(engine_type="NaiveEngine", exit_timeout=1) as outer:
        assert settings.get() is outer
        assert outer.exit_timeout == 1.0
        with settings.override(engine_max_ops=2):
            assert settings.get().engine_type == "NaiveEngine"
            assert settings.get().engine_max_ops == 2
        assert settings.get() is outer
        assert settings.sources()["engine_type"] == "override"
    assert settings.get() == Settings()
    assert set(settings.sources().values()) == {"default"}


def test_override_ends_when_its_body_raises(environ):
    with pytest.raises(KeyError), settings.override(engine_check=True):
        raise KeyError
    assert settings.get() == Settings()


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"engine_typ": "NaiveEngine"}, TypeError, "did you mean 'engine_type'"),
        ({"engine_type": "FastEngine"}, SettingError, "FLOWMX_ENGINE_TYPE"),
        ({"engine_check": 1}, SettingError, "0, 1, true or false"),
        ({"exec_num_temp": True}, SettingError, "an int"),
        ({"exec_num_temp": None}, SettingError, "an int"),
    ],
)
def test_override_checks_names_and_values(values, error, message):
    with pytest.raises(error, match=message), settings.override(**values):
        pass


def test_an_unknown_variable_warns_and_names_the_nearest(environ):
    environ.setenv("FLOWMX_ENGIN_TYPE", "NaiveEngine")
    with pytest.warns(UserWarning, match="FLOWMX_ENGIN_TYPE .* did you mean 'FLOWMX_ENGINE_TYPE'"):
        settings.reload()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings.get().engine_type == "ThreadedEnginePerDevice"


def test_variables_of_mxnet_that_nothing_reads_are_named():
    variables = settings.mxnet_variables({"MXNET_ENGINE_TYPE": "NaiveEngine", "MXNET_TEST_SEED": "1", "PATH": ""})
    assert variables == ["MXNET_TEST_SEED"]


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_mxnets_variable_applies_if_flowmxs_is_unset(row):
    value = str(row.choices[-1] if row.choices else row.low or 1)
    loaded = settings.load({row.mxnet_variable: value})
    assert getattr(loaded, row.name) == row.parse(value)
    assert getattr(settings.load({row.mxnet_variable: "wrong", row.variable: value}), row.name) == row.parse(value)


def test_mxnets_names_of_settings_are_read():
    assert settings.load({"MXNET_ENABLE_CUDA_GRAPHS": "1"}).cuda_graphs


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.get().engine_max_ops = 1


def test_variables_of_other_launchers_stand_for_those_that_are_unset():
    dmlc = {
        "DMLC_ROLE": "server",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_WORKER": "4",
        "DMLC_NUM_SERVER": "2",
    }
    loaded = settings.load(dmlc)
    assert (loaded.role, loaded.scheduler, loaded.num_workers, loaded.num_servers) == ("server", "10.0.0.1:9091", 4, 2)
    assert settings.load(dmlc | {"FLOWMX_ROLE": "worker"}).role == "worker"


def test_a_setting_that_takes_two_variables_of_others_needs_both():
    assert settings.load({"DMLC_PS_ROOT_PORT": "9091"}).scheduler == ""


def test_a_bad_value_in_a_variable_of_others_names_that_variable():
    with pytest.raises(SettingError, match=r"DMLC_ROLE is 'boss', expected one of worker, server, scheduler"):
        settings.load({"DMLC_ROLE": "boss"})


def test_the_source_of_a_setting_names_the_variables_of_others(environ):
    environ.setenv("DMLC_PS_ROOT_URI", "10.0.0.1")
    environ.setenv("DMLC_PS_ROOT_PORT", "9091")
    settings.reload()
    assert settings.sources()["scheduler"] == "environment: DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
