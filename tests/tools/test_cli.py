import json
import os
import re
import subprocess
import sys
import types
from importlib import metadata

import pytest

import flowmx
from flowmx import cli
from flowmx.ops import kernels
from flowmx.settings import TABLE


def run(*arguments, **environ):
    """Run ``python -m flowmx`` with `environ` as its only settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "MXNET_"))}
    return subprocess.run(
        [sys.executable, "-m", "flowmx", *arguments],
        env=environment | environ,
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
    done = run("info", "--json", FLOWMX_CPU_WORKER_NTHREADS="2", MXNET_SAFE_ACCUMULATION="1")
    document = json.loads(done.stdout)
    rows = {row["variable"]: row for row in document["settings"]}
    assert list(rows) == [row.variable for row in TABLE.values()]
    assert rows["FLOWMX_CPU_WORKER_NTHREADS"]["value"] == 2
    assert rows["FLOWMX_CPU_WORKER_NTHREADS"]["source"] == "environment"
    assert document["ignored"] == ["MXNET_SAFE_ACCUMULATION"]
    assert document["packages"]["numpy"] == metadata.version("numpy")
    assert document["devices"][0] == "cpu(0)"
    assert document["cores"] >= 1


def test_info_names_a_variable_of_mxnet_that_is_ignored():
    assert "  MXNET_SAFE_ACCUMULATION\n" in run("info", MXNET_SAFE_ACCUMULATION="1").stdout


def test_info_reports_where_an_mxnet_variable_applies():
    done = run("info", MXNET_ENGINE_TYPE="NaiveEngine", MXNET_EXEC_NUM_TEMP="2", FLOWMX_EXEC_NUM_TEMP="3")
    assert "FLOWMX_ENGINE_TYPE = NaiveEngine  (environment: MXNET_ENGINE_TYPE)" in done.stdout
    assert "FLOWMX_EXEC_NUM_TEMP = 3  (environment)" in done.stdout


def test_info_reports_int8_without_its_instructions(capsys):
    """oneDNN sums products of int8 exactly with VNNI; without it flowmx computes them in float32."""
    hidden = json.loads(run("info", "--json", ONEDNN_MAX_CPU_ISA="AVX2").stdout)
    assert hidden["numbers"]["int8"]["computed in"] == "float32"
    cli.main(["info", "--json"])
    row = json.loads(capsys.readouterr().out)["numbers"]["int8"]
    exact = bool(kernels.quantized_dtypes("cpu"))
    assert row["computed in"] == ("int8, summed in int32" if exact else "float32")
    assert not exact or any("vnni" in name for name in row["instructions"])


def test_a_bad_setting_is_an_error_without_a_traceback():
    done = run("info", FLOWMX_ENGINE_MAX_OPS="none")
    assert done.returncode == 1
    assert done.stderr.startswith("flowmx: error: FLOWMX_ENGINE_MAX_OPS is 'none'")
    assert done.stdout == ""


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["info", "--help"], 0), ([], 2), (["inf"], 2)])
def test_exit_status(arguments, status, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == status
    assert "usage: flowmx" in "".join(capsys.readouterr())


def test_the_version_is_that_of_the_installed_package():
    assert flowmx.__version__ == metadata.version("flowmx")


MODULES = {name: module for group in cli.COMMANDS.values() for name, (module, _) in group.items()}


@pytest.mark.parametrize("command", MODULES)
def test_every_command_has_the_same_style_of_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: flowmx {command}")
    assert re.search(r"\nexit status:\n  0    .*\n  1    .*\n  2    invalid arguments\n", shown)
    for line in shown.partition("examples:\n")[2].partition("\n\n")[0].splitlines():
        assert line.startswith(f"  flowmx {command}")


def test_an_unknown_command_suggests_the_nearest(capsys):
    for value, hint in (
        ("trian", "did you mean 'train'?"),
        ("xyzzy", "expected one of train, serve, chat, inspect, convert"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main([value])
        assert caught.value.code == 2
        assert hint in capsys.readouterr().err


def command(monkeypatch, error):
    module = types.ModuleType("a_command")

    def main(arguments):
        raise error

    module.main = main
    monkeypatch.setitem(sys.modules, "a_command", module)
    monkeypatch.setitem(cli._MODULES, "info", "a_command")


def test_errors_are_one_line(monkeypatch, capsys):
    command(monkeypatch, ValueError("the shape is 3, expected 4"))
    assert cli.main(["info"]) == 1
    assert capsys.readouterr().err == "flowmx: error: the shape is 3, expected 4\n"
    command(monkeypatch, KeyError("w"))
    assert cli.main(["info"]) == 1
    assert capsys.readouterr().err == "flowmx: error: KeyError: 'w' (traceback: flowmx --traceback info ...)\n"


def test_errors_show_a_traceback_on_request(monkeypatch, capsys):
    command(monkeypatch, ValueError("the shape is 3, expected 4"))
    assert cli.main(["--traceback", "info"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback") and shown.endswith("ValueError: the shape is 3, expected 4\n")


def test_an_interrupted_command_has_a_distinct_exit_status(monkeypatch, capsys):
    command(monkeypatch, KeyboardInterrupt())
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == ""


def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"flowmx {flowmx.__version__}\n"


@pytest.mark.parametrize("value", ["99999", "http"])
def test_an_invalid_port_is_refused(value, capsys):
    for arguments in (["serve", "model"], ["scheduler"], ["server"]):
        with pytest.raises(SystemExit) as caught:
            cli.main([*arguments, "--port", value])
        assert caught.value.code == 2
        assert f"{value!r}, expected a number from 0 to 65535" in capsys.readouterr().err
