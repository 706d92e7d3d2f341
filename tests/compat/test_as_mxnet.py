"""``import mxnet`` is flowmx: after ``install_as_mxnet()``, in ``flowmx run``, and with the distribution ``mxnet``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import flowmx
from flowmx.compat import package

ROOT = Path(__file__).parent.parent.parent
DISTRIBUTION = ROOT / "packaging" / "mxnet"


def run(*arguments, cwd=None, **environ):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=cwd,
        env=environment | environ, check=False,
    )  # fmt: skip


def python(code, **environ):
    done = run("-c", textwrap.dedent(code), **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("new_python")
def test_there_is_one_copy_of_each_module_and_class():
    python(
        """
        import sys
        import flowmx
        flowmx.install_as_mxnet()
        flowmx.install_as_mxnet()
        import mxnet as mx
        import mxnet.gluon.data.dataloader
        from mxnet.ndarray.ndarray import NDArray
        assert mx.gluon.Block is flowmx.gluon.Block and NDArray is flowmx.nd.NDArray
        assert sys.modules["mxnet.gluon"] is sys.modules["flowmx.gluon"]
        assert mx.gluon.__name__ == mx.gluon.__spec__.name == "flowmx.gluon"
        names = {name.partition(".")[2] for name in sys.modules if name.startswith("mxnet.")}
        assert names and all(sys.modules[f"mxnet.{each}"] is sys.modules[f"flowmx.{each}"] for each in names)
        assert (mx.__version__, mx.libinfo.__version__) == ("1.9.1", "1.9.1") != flowmx.__version__
        """
    )


def test_workers_of_loaders_import_it_too(tmp_path):
    (tmp_path / "numbers_of_mxnet.py").write_text(
        "from mxnet import gluon\n\n\nclass Numbers(gluon.data.Dataset):\n"
        "    def __len__(self):\n        return 4\n\n    def __getitem__(self, at):\n        return float(at)\n"
    )
    output = python(
        """
        import flowmx
        flowmx.install_as_mxnet()
        from mxnet import gluon
        from numbers_of_mxnet import Numbers
        print([each.asnumpy().tolist() for each in gluon.data.DataLoader(Numbers(), 2, num_workers=1)])
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert output.split("\n")[0] == "[[0.0, 1.0], [2.0, 3.0]]"


def test_pickles_are_read_under_both_names():
    python(
        """
        import pickle
        import flowmx
        flowmx.install_as_mxnet()
        import mxnet as mx
        assert pickle.loads(pickle.dumps(mx.lr_scheduler.FactorScheduler)) is flowmx.lr_scheduler.FactorScheduler
        by_name = b"cmxnet.gluon.nn.basic_layers\\nDense\\n."
        assert pickle.loads(by_name) is flowmx.gluon.nn.Dense
        array = pickle.loads(pickle.dumps(mx.nd.array([1, 2])))
        assert type(array) is flowmx.nd.NDArray
        """
    )


def test_an_mxnet_that_is_already_imported_is_not_replaced(tmp_path):
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("nd = 1")
    python(
        """
        import mxnet, flowmx
        try:
            flowmx.install_as_mxnet()
        except ImportError as error:
            assert "was already imported" in str(error) and mxnet.__file__ in str(error)
        else:
            raise AssertionError("it was replaced")
        """,
        PYTHONPATH=str(tmp_path),
    )


def test_a_missing_module_path_is_reported():
    python(
        """
        import flowmx
        flowmx.install_as_mxnet()
        try:
            import mxnet.nonsense
        except ModuleNotFoundError as error:
            assert error.name == "mxnet.nonsense" and "mxnet is an alias of flowmx" in str(error)
        else:
            raise AssertionError
        """
    )


SCRIPT = """
import sys
import mxnet as mx

if __name__ == "__main__":
    print(mx.__version__, sys.argv[1:], sys.path[0], sys.modules["__main__"].mx is mx, flush=True)
    import subprocess
    subprocess.run([sys.executable, "-c", "import mxnet; print(mxnet.__version__)"], check=True)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.usefixtures("new_python")
def test_run_runs_a_script_as_python_does(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("-m", "flowmx", "run", tmp_path / "script.py", "3", "--help")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.split("\n") == [f"1.9.1 ['3', '--help'] {tmp_path} True", "1.9.1", ""]


def test_run_runs_a_module_as_python_does(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(SCRIPT)
    done = run("-m", "flowmx", "run", "-m", "package", "0", "-m", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == [f"1.9.1 ['0', '-m'] {tmp_path} True", "1.9.1", ""]


def test_run_shows_a_programs_own_traceback(tmp_path):
    (tmp_path / "script.py").write_text("import mxnet\nmxnet.nd.nonsense\n")
    done = run("-m", "flowmx", "run", tmp_path / "script.py")
    assert done.returncode == 1
    assert done.stderr.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}/script.py", line 2')


def test_run_reports_a_missing_script():
    for arguments, message in (
        ([], "expected a SCRIPT"),
        (["-m", "no_such_module"], "there is no executable module 'no_such_module'"),
    ):
        done = run("-m", "flowmx", "run", *arguments)
        assert done.returncode != 0
        assert message in done.stderr


def test_the_distribution_is_mxnet_by_name_version_and_import():
    described = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text("utf-8"))["project"]
    assert described["name"] == "mxnet"
    assert described["version"].startswith(f"{package.VERSION}.post")
    assert described["dependencies"] == ["flowmx"]
    code = "import mxnet, flowmx; print(mxnet.__version__, mxnet.nd is flowmx.nd, mxnet.gluon.Block.__module__)"
    assert python(code, PYTHONPATH=str(DISTRIBUTION)) == "1.9.1 True flowmx.gluon.base_block\n"


def test_child_processes_import_the_distributions_module():
    folder = Path(flowmx.__file__).parent / "compat" / "shim" / "mxnet"
    assert (folder / "__init__.py").read_text("utf-8") == (DISTRIBUTION / "mxnet" / "__init__.py").read_text("utf-8")


@pytest.mark.usefixtures("new_python")
def test_all_names_are_imported_where_optional_packages_are_missing():
    python(
        """
        import sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("sklearn", "onnx", "PIL", "pandas", "matplotlib", "graphviz", "scipy"):
                    raise ModuleNotFoundError(f"no {name}", name=name)

        sys.meta_path.insert(0, Missing())
        from flowmx import *
        assert nd.dot and gluon.nn.Dense and "sklearn" not in globals()
        install_as_mxnet()
        from mxnet import *
        from mxnet.ndarray import *
        assert FullyConnected is nd.FullyConnected and "mxnet.ndarray" in sys.modules
        """
    )


def test_a_program_finds_the_module_of_builtins(tmp_path):
    (tmp_path / "script.py").write_text("print(getattr(__builtins__, 'float'))\n")
    assert run("-m", "flowmx", "run", tmp_path / "script.py").stdout == "<class 'float'>\n"
    assert run("-m", "flowmx", "run", "-m", "script", cwd=tmp_path).stdout == "<class 'float'>\n"
