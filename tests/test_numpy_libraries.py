"""scikit-learn and SciPy on arrays of ``mx.np``, by the array API standard: NumPy's results, and no copies."""

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
copied = []
inner = ndarray.__array__


def counted(self, *args, **kwargs):
    copied.append(self.shape)
    return inner(self, *args, **kwargs)


ndarray.__array__ = counted


def fitted(model, *names):
    def run(X, classes, numbers):
        model.fit(X, classes if isinstance(model, LinearDiscriminantAnalysis) else numbers)
        predicted = [model.predict(X)] if hasattr(model, "predict") else [abs(model.transform(X))]
        return [abs(getattr(model, name)) for name in names] + predicted

    return run


CASES = {
    "LinearDiscriminantAnalysis": fitted(LinearDiscriminantAnalysis(), "coef_", "means_"),
    "PCA": fitted(PCA(2, svd_solver="full"), "components_", "explained_variance_"),
    "PCA, eigh": fitted(PCA(2, svd_solver="covariance_eigh"), "components_", "explained_variance_"),
    "Ridge": fitted(Ridge(solver="svd"), "coef_"),
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
    given = [np.asarray(each) for each in (X, classes, numbers)]
    copied.clear()
    with mx.util.np_views():
        found = run(*given)
    assert not copied, (name, copied)
    for one, other in zip(expected, found, strict=True):
        assert isinstance(other, ndarray), (name, type(other))
        onp.testing.assert_allclose(other.asnumpy(), one, rtol=1e-4, atol=1e-5, err_msg=name)
print(len(CASES))
"""


def test_results_are_those_of_numpy_without_a_copy():
    sklearn = pytest.importorskip("sklearn", minversion="1.7")
    pytest.importorskip("scipy", minversion="1.15")
    del sklearn
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={**os.environ, "SCIPY_ARRAY_API": "1"}
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.split() == ["15"]
