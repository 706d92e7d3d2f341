import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

import flowmx
from flowmx import cli
from flowmx.settings import TABLE


def run(*arguments, **environ):
    """Run ``python -m flowmx`` with `environ` as its only settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "MXNET_"))}
    return subprocess.run(
        [sys.executable, "-m", "flowmx", *arguments],
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_info_prints_every_setting_with_its_source():
    done = run("info", FLOWMX_ENGINE_TYPE="NaiveEngine")
    assert done.returncode == 0, done.stderr
    assert "FLOWMX_ENGINE_TYPE = NaiveEngine  (environment)" in done.stdout
    assert "FLOWMX_SEED = unset  (default)" in done.stdout
    for row in TABLE.values():
        assert row.variable in done.stdout


def test_info_as_json():
    done = run("info", "--json", FLOWMX_CPU_WORKER_NTHREADS="2", MXNET_ENGINE_TYPE="NaiveEngine")
    found = json.loads(done.stdout)
    rows = {row["variable"]: row for row in found["settings"]}
    assert list(rows) == [row.variable for row in TABLE.values()]
    assert rows["FLOWMX_CPU_WORKER_NTHREADS"]["value"] == 2
    assert rows["FLOWMX_CPU_WORKER_NTHREADS"]["source"] == "environment"
    assert found["ignored"] == {"MXNET_ENGINE_TYPE": "FLOWMX_ENGINE_TYPE"}
    assert found["packages"]["numpy"] == metadata.version("numpy")
    assert found["devices"][0] == "cpu(0)"
    assert found["cores"] >= 1


def test_info_names_a_variable_of_mxnet_that_is_ignored():
    assert "MXNET_EXEC_NUM_TEMP: set FLOWMX_EXEC_NUM_TEMP" in run("info", MXNET_EXEC_NUM_TEMP="1").stdout


def test_a_bad_setting_is_an_error_without_a_traceback():
    done = run("info", FLOWMX_ENGINE_MAX_OPS="none")
    assert done.returncode == 1
    assert done.stderr.startswith("flowmx: error: FLOWMX_ENGINE_MAX_OPS was given 'none'")
    assert done.stdout == ""


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["info", "--help"], 0), ([], 2), (["inf"], 2)])
def test_exit_status(arguments, status, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == status
    assert "usage: flowmx" in "".join(capsys.readouterr())


def test_the_version_is_that_of_the_installed_package():
    assert flowmx.__version__ == metadata.version("flowmx")
