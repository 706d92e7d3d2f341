"""scikit-learn and SciPy on arrays of ``mx.np`` through the array API: the same results, without copies to NumPy."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import warnings
import numpy as onp
import scipy.fft, scipy.signal, scipy.special, scipy.stats
import sklearn
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import pairwise
import flowmx as mx
from flowmx import np
from flowmx.numpy.arrays import ndarray

sklearn.set_config(array_api_dispatch=True)
warnings.simplefilter("ignore")
rng = onp.random.default_rng(0)
X = rng.normal(size=(60, 5)).astype("float32") * onp.array([3, 1, 1, 1, 1], "float32")
classes = (X[:, 0] + X[:, 1] > 0).astype("int64")
numbers = (X @ onp.arange(5)).astype("float32")
copies = []
original = ndarray.__array__


def count(self, *args, **kwargs):
    copies.append(self.shape)
    return original(self, *args, **kwargs)


ndarray.__array__ = count


def fit(model, *names):
    def run(X, classes, numbers):
        model.fit(X, classes if isinstance(model, LinearDiscriminantAnalysis) else numbers)
        predictions = [model.predict(X)] if hasattr(model, "predict") else [abs(model.transform(X))]
        return [abs(getattr(model, name)) for name in names] + predictions

    return run


CASES = {
    "LinearDiscriminantAnalysis": fit(LinearDiscriminantAnalysis(), "coef_", "means_"),
    "PCA": fit(PCA(2, svd_solver="full"), "components_", "explained_variance_"),
    "PCA, eigh": fit(PCA(2, svd_solver="covariance_eigh"), "components_", "explained_variance_"),
    "Ridge": fit(Ridge(solver="svd"), "coef_"),
    **{
        name: lambda X, *_, name=name: [getattr(pairwise, name)(X)]
        for name in ("cosine_similarity", "euclidean_distances", "rbf_kernel", "linear_kernel", "polynomial_kernel")
    },
    "fftconvolve": lambda X, *_: [scipy.signal.fftconvolve(X[:, 0], X[:5, 1])],
    "hilbert": lambda X, *_: [abs(scipy.signal.hilbert(X[:, 0]))],
    "oaconvolve": lambda X, *_: [scipy.signal.oaconvolve(X, X[:5, :3]), scipy.signal.oaconvolve(X[:, 0], X[:7, 1])],
    "rfft": lambda X, *_: [abs(scipy.fft.rfft(X, axis=0))],
    "logsumexp": lambda X, *_: [scipy.special.logsumexp(X, axis=1), scipy.special.softmax(X, axis=1)],
    "skew": lambda X, *_: [scipy.stats.skew(X, axis=0), scipy.stats.zscore(X, axis=0)],
}
for name, run in CASES.items():
    expected = run(X, classes, numbers)
    arrays = [np.asarray(array) for array in (X, classes, numbers)]
    copies.clear()
    with mx.util.np_views():
        results = run(*arrays)
    assert not copies, (name, copies)
    for one, other in zip(expected, results, strict=True):
        assert isinstance(other, ndarray), (name, type(other))
        onp.testing.assert_allclose(other.asnumpy(), one, rtol=1e-4, atol=1e-5, err_msg=name)
print(len(CASES))
"""


def test_results_match_numpy_without_copies():
    sklearn = pytest.importorskip("sklearn", minversion="1.7")
    pytest.importorskip("scipy", minversion="1.15")
    del sklearn
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={**os.environ, "SCIPY_ARRAY_API": "1"}
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.split() == ["15"]
