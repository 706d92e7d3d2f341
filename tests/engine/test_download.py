"""Downloads: files come from a server on the loopback address and are stored where MXNet's scripts expect them."""

import gzip
import hashlib
import http.server
import io
import multiprocessing
import os
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import download as module
from flowmx import settings
from flowmx.gluon.model_zoo import model_store
from flowmx.gluon.utils import check_sha1, download


class Server(http.server.ThreadingHTTPServer):
    """A server of files, with planted faults."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.asked = []  # path and Range of every request
        self.cut_after = []  # bytes after which the next answers end
        self.refuse = []  # statuses of the next answers
        self.tags = True

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, path, content):
        self.files[path] = content
        return hashlib.sha1(content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        if server.refuse:
            self.send_error(server.refuse.pop(0))
            return
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        tag, start = f'"{hashlib.sha1(content).hexdigest()}"', 0
        range_header = self.headers.get("Range")
        if range_header and self.headers.get("If-Range") == tag:
            start = int(range_header.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if server.tags:
            self.send_header("ETag", tag)
        self.end_headers()
        end = start + server.cut_after.pop(0) if server.cut_after else len(content)
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0)
    instance = Server()
    thread = threading.Thread(target=instance.serve_forever, args=(0.01,))
    thread.start()
    yield instance
    instance.shutdown()
    thread.join()
    instance.server_close()


@pytest.fixture
def repository(server, tmp_path):
    with settings.override(gluon_repo=f"{server.url}/repo", home=str(tmp_path / "home")):
        yield server


CONTENT = np.random.default_rng(0).bytes(300_000)


def left(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def starts(server):
    """Return the first byte that each request asked for."""
    return [int((start or "bytes=0-").removeprefix("bytes=").rstrip("-")) for _, start in server.asked]


def test_a_file_is_fetched_once(server, tmp_path):
    sha1 = server.add("/a/b.params", CONTENT)
    for _ in range(2):
        path = download(f"{server.url}/a/b.params", path=str(tmp_path), sha1_hash=sha1)
    assert path == str(tmp_path / "b.params")
    assert Path(path).read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert left(tmp_path) == ["b.params"]


def test_the_name_is_the_end_of_the_address(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server.add("/b.bin", b"x")
    assert download(f"{server.url}/b.bin") == "b.bin"
    assert download(f"{server.url}/b.bin", path="deep/er/c.bin") == "deep/er/c.bin"
    assert Path("deep/er/c.bin").read_bytes() == b"x"
    with pytest.raises(AssertionError, match="does not end with a file name"):
        download(f"{server.url}/")
    with pytest.raises(AssertionError, match="retries is -1"):
        download(f"{server.url}/b.bin", retries=-1)


def test_a_file_with_another_sha1_is_replaced(server, tmp_path):
    sha1 = server.add("/b", CONTENT)
    target = tmp_path / "b"
    target.write_bytes(b"old")
    assert download(f"{server.url}/b", path=str(target)) == str(target)
    assert target.read_bytes() == b"old"
    download(f"{server.url}/b", path=str(target), sha1_hash=sha1)
    assert target.read_bytes() == CONTENT
    target.write_bytes(b"old")
    download(f"{server.url}/b", path=str(target), overwrite=True)
    assert target.read_bytes() == CONTENT


def test_an_interrupted_transfer_resumes(server, tmp_path):
    sha1 = server.add("/b", CONTENT)
    server.cut_after = [100_000, 50_000]
    download(f"{server.url}/b", path=str(tmp_path / "b"), sha1_hash=sha1)
    assert (tmp_path / "b").read_bytes() == CONTENT
    first, second, third = starts(server)
    assert first == 0
    assert 80_000 < second <= 100_000
    assert second < third <= 150_000
    assert left(tmp_path) == ["b"]


def test_a_later_call_resumes_too(server, tmp_path):
    server.add("/b", CONTENT)
    server.cut_after = [100_000]
    with pytest.raises(module.DownloadError, match="could not be downloaded"):
        download(f"{server.url}/b", path=str(tmp_path / "b"), retries=1)
    assert not (tmp_path / "b").exists()
    download(f"{server.url}/b", path=str(tmp_path / "b"), retries=1)
    assert (tmp_path / "b").read_bytes() == CONTENT
    assert 80_000 < starts(server)[-1] <= 100_000


def test_a_changed_file_is_fetched_from_its_beginning(server, tmp_path):
    server.add("/b", CONTENT)
    server.cut_after = [100_000]
    with pytest.raises(module.DownloadError):
        download(f"{server.url}/b", path=str(tmp_path / "b"), retries=1)
    server.add("/b", b"another one")
    download(f"{server.url}/b", path=str(tmp_path / "b"), retries=1)
    assert (tmp_path / "b").read_bytes() == b"another one"


def test_a_server_without_versions_is_asked_for_all_of_it_again(server, tmp_path):
    server.tags = False
    server.add("/b", CONTENT)
    server.cut_after = [100_000]
    download(f"{server.url}/b", path=str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == CONTENT
    assert [range_header for _, range_header in server.asked] == [None, None]


def test_temporary_errors_are_retried(server, tmp_path):
    server.add("/b", b"x")
    server.refuse = [503, 500, 429]
    download(f"{server.url}/b", path=str(tmp_path / "b"))
    assert len(server.asked) == 4


def test_the_error_of_an_unavailable_file_says_where_to_put_it(server, tmp_path):
    target = tmp_path / "b"
    with pytest.raises(FileNotFoundError, match=rf"404.*copy it to {target}") as caught:
        download(f"{server.url}/missing", path=str(target))
    assert isinstance(caught.value, mx.MXNetError)
    assert len(server.asked) == 1
    server.shutdown()
    server.server_close()
    with pytest.raises(module.DownloadError, match=f"copy it to {target}"):
        download(f"{server.url}/b", path=str(target), retries=2)
    assert left(tmp_path) == []


def test_a_file_with_a_wrong_hash_is_deleted(server, tmp_path):
    server.add("/b", CONTENT)
    with pytest.raises(module.ChecksumError, match="another SHA-1") as caught:
        download(f"{server.url}/b", path=str(tmp_path / "b"), sha1_hash="0" * 40, retries=2)
    assert isinstance(caught.value, UserWarning)
    assert len(server.asked) == 2
    assert left(tmp_path) == []


def test_unverified_certificates_cause_a_warning(server, tmp_path):
    server.add("/b", b"x")
    with pytest.warns(UserWarning, match="^Unverified HTTPS request"):
        download(f"{server.url}/b", path=str(tmp_path / "b"), verify_ssl=False)


def _ask(url, path, sha1):
    download(url, path=path, sha1_hash=sha1)


def test_of_several_processes_one_fetches(server, tmp_path):
    sha1 = server.add("/b", CONTENT)
    context = multiprocessing.get_context("spawn")
    arguments = (f"{server.url}/b", str(tmp_path / "b"), sha1)
    processes = [context.Process(target=_ask, args=arguments) for _ in range(3)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0] * 3
    assert (tmp_path / "b").read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert left(tmp_path) == ["b"]


def test_of_several_threads_one_fetches(server, tmp_path):
    sha1 = server.add("/b", CONTENT)
    threads = [threading.Thread(target=_ask, args=(f"{server.url}/b", str(tmp_path / "b"), sha1)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(server.asked) == 1
    assert left(tmp_path) == ["b"]


def test_nothing_is_printed_where_there_is_no_terminal(server, tmp_path, capfd):
    server.add("/b", CONTENT)
    download(f"{server.url}/b", path=str(tmp_path / "b"))
    assert capfd.readouterr() == ("", "")


def test_a_bar_is_drawn_on_a_terminal(server, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    server.add("/b", CONTENT)
    download(f"{server.url}/b", path=str(tmp_path / "b"))
    assert "0.3/0.3" in terminal.getvalue()


def test_test_utils_downloads_into_a_folder(server, tmp_path):
    server.add("/b", b"x")
    path = mx.test_utils.download(f"{server.url}/b", fname="c", dirname=str(tmp_path / "new"))
    assert path == str(tmp_path / "new" / "c")
    assert Path(path).read_bytes() == b"x"


# -- the model zoo and the data sets -----------------------------------------------------------------------


def published(server, monkeypatch, name="mobilenet0.25"):
    """Publish weights of a model in the repository, in the layout of MXNet's."""
    net = mx.gluon.model_zoo.vision.get_model(name, classes=3)
    net.initialize(mx.init.Constant(0.5))
    net(mx.nd.ones((1, 3, 32, 32)))
    file = io.BytesIO()
    weights = {key.removeprefix(net.prefix): value for key, value in net._collect_params_with_prefix().items()}
    mx.nd.save(path := f"{os.getpid()}.params", {key: value.data() for key, value in weights.items()})
    content = Path(path).read_bytes()
    Path(path).unlink()
    sha1 = hashlib.sha1(content).hexdigest()
    monkeypatch.setitem(model_store._model_sha1, name, sha1)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}-{sha1[:8]}.params", content)
    server.add(f"/repo/gluon/models/{name}-{sha1[:8]}.zip", file.getvalue())
    return net


def test_pretrained_weights_are_fetched_and_used(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = published(repository, monkeypatch)
    data = mx.nd.ones((1, 3, 32, 32))
    for _ in range(2):
        loaded = mx.gluon.model_zoo.vision.mobilenet0_25(pretrained=True, classes=3)
        assert (loaded(data).asnumpy() == net(data).asnumpy()).all()
    assert len(repository.asked) == 1
    sha1 = model_store._model_sha1["mobilenet0.25"]
    assert left(tmp_path / "home" / "models") == [f"mobilenet0.25-{sha1[:8]}.params"]
    model_store.purge()
    assert left(tmp_path / "home" / "models") == []


def test_a_damaged_file_of_weights_is_fetched_again(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    published(repository, monkeypatch)
    path = Path(model_store.get_model_file("mobilenet0.25", root=tmp_path / "own"))
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="not the file that MXNet published"):
        assert model_store.get_model_file("mobilenet0.25", root=tmp_path / "own") == str(path)
    assert check_sha1(path, model_store._model_sha1["mobilenet0.25"])


def test_an_archive_with_other_weights_is_refused(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    published(repository, monkeypatch)
    monkeypatch.setitem(
        model_store._model_sha1, "mobilenet0.25", model_store._model_sha1["mobilenet0.25"][:8] + "0" * 32
    )
    with pytest.raises(ValueError, match="does not have the weights that MXNet published"):
        model_store.get_model_file("mobilenet0.25")
    assert left(tmp_path / "home" / "models") == []


def test_unavailable_weights_are_named(repository, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"neither at .*alexnet-44335d1f\.params nor at .*alexnet\.params, and .*copy it"
    ):
        mx.gluon.model_zoo.vision.alexnet(pretrained=True)


def _idx(array):
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.mark.parametrize(("kind", "namespace"), [("MNIST", "mnist"), ("FashionMNIST", "fashion-mnist")])
def test_mnist_is_fetched(repository, tmp_path, monkeypatch, kind, namespace):
    images, labels = np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28), np.arange(3, dtype=np.uint8)
    cls = getattr(mx.gluon.data.vision, kind)
    for name, array in (("t10k-images-idx3-ubyte.gz", images), ("t10k-labels-idx1-ubyte.gz", labels)):
        sha1 = repository.add(f"/repo/gluon/dataset/{namespace}/{name}", _idx(array))
        monkeypatch.setitem(cls._sha1, name, sha1)
    for _ in range(2):
        data = cls(train=False)
        assert (data[1][0].asnumpy() == images[1, ..., None]).all()
        assert data[2][1] == 2
    assert len(repository.asked) == 2
    assert len(left(tmp_path / "home" / "datasets" / namespace)) == 2
    with pytest.raises(FileNotFoundError, match=r"copy it to .*train-images-idx3-ubyte\.gz"):
        cls()


@pytest.mark.parametrize(("kind", "label", "archive"), [
    ("CIFAR10", 1, "cifar10/cifar-10-binary.tar.gz"), ("CIFAR100", 2, "cifar100/cifar-100-binary.tar.gz"),
])  # fmt: skip
def test_cifar_is_fetched(repository, monkeypatch, kind, label, archive):
    row = np.full((2, label + 3072), 7, np.uint8)
    file = io.BytesIO()
    cls = getattr(mx.gluon.data.vision, kind)
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in cls._files[0]:
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = row.nbytes
            tar.addfile(member, io.BytesIO(row.tobytes()))
    monkeypatch.setattr(cls, "_sha1", repository.add(f"/repo/gluon/dataset/{archive}", file.getvalue()))
    data = cls(train=False)
    assert len(data) == 2
    assert data[0][0].shape == (32, 32, 3)
    assert data[0][1] == 7


@pytest.mark.parametrize("kind", ["WikiText2", "WikiText103"])
def test_wikitext_is_fetched(repository, monkeypatch, kind):
    text = " = A = \n \n b c b\n c d e f g\n"
    file = io.BytesIO()
    cls = getattr(mx.gluon.contrib.data, kind)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{cls._namespace}/wiki.valid.tokens", text)
    url = f"/repo/gluon/dataset/{cls._namespace}/{cls._namespace}-v1.zip"
    monkeypatch.setattr(cls, "_sha1", repository.add(url, file.getvalue()))
    data = cls(segment="validation", seq_len=4)
    words = [data.vocabulary.to_tokens(row.asnumpy().tolist()) for row, _ in data]
    assert words == [["=", "A", "=", "<eos>"], ["b", "c", "b", "<eos>"], ["c", "d", "e", "f"]]
    assert data.vocabulary.to_tokens(data[0][1].asnumpy().tolist()) == ["A", "=", "<eos>", "b"]
    assert data.frequencies["b"] == 2
    with pytest.raises(AssertionError, match="segment"):
        cls(segment="dev")


def test_the_variables_of_the_environment_count_when_it_is_needed(server, tmp_path, monkeypatch):
    labels = _idx(np.arange(3, dtype=np.uint8))
    server.add("/gluon/dataset/mnist/t10k-labels-idx1-ubyte.gz", labels)
    monkeypatch.setenv("FLOWMX_HOME", str(tmp_path))
    monkeypatch.setenv("FLOWMX_GLUON_REPO", server.url)
    assert module.repository() == f"{server.url}/"
    assert module.data_dir() == tmp_path
    with pytest.raises(FileNotFoundError):
        mx.gluon.data.vision.MNIST(train=False)
    assert server.asked[0][0] == "/gluon/dataset/mnist/t10k-images-idx3-ubyte.gz"


@pytest.mark.usefixtures("new_python")
def test_nothing_of_the_network_is_imported_before_it_is_needed():
    code = "import sys, flowmx.gluon; print('requests' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
