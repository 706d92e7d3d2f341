"""`mx.sklearn`: scikit-learn's checks of estimators, and typical uses."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn

QUICK: Any = {"hidden_layer_sizes": (16,), "max_iter": 8, "learning_rate": 0.05}


@pytest.fixture(autouse=True, scope="module")
def scikit_learn():
    """Import scikit-learn only when a test runs: it takes two seconds in each process that collects tests."""
    return pytest.importorskip("sklearn", "1.6")


@pytest.mark.parametrize("kind", ["NetworkClassifier", "NetworkRegressor"])
def test_scikit_learns_checks(kind):
    from sklearn.utils.estimator_checks import check_estimator

    checks = check_estimator(getattr(mx.sklearn, kind)(**QUICK), on_skip=None, on_fail=None)
    assert len(checks) > 40
    failed = [check for check in checks if check["status"] not in ("passed", "skipped")]
    if failed:
        raise ExceptionGroup(
            ", ".join(check["check_name"] for check in failed), [check["exception"] for check in failed]
        )


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


def convolutional(classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, activation="relu"), nn.MaxPool2D(), nn.Dropout(0.2), nn.Dense(classes))
    return net


def test_digits_are_learnt_in_a_pipeline(digits):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from flowmx.sklearn import NetworkClassifier

    X, y = digits
    model = make_pipeline(StandardScaler(), NetworkClassifier(hidden_layer_sizes=64, max_iter=8, random_state=0))
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.88
    probabilities = model.predict_proba(X[1200:1210])
    assert probabilities.shape == (10, 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(X[1200:1210])).all()


def test_a_convolutional_network_accepts_images_and_is_not_changed(digits):
    from flowmx.sklearn import NetworkClassifier

    X, y = digits[0][:600].reshape(-1, 1, 8, 8), digits[1][:600]
    net = convolutional(10)
    model = NetworkClassifier(net, max_iter=6, learning_rate=0.01, random_state=1).fit(X, y)
    assert model.score(X, y) > 0.9
    assert net[0].weight.shape == (8, 0, 3, 3)
    other = NetworkClassifier(convolutional, max_iter=6, learning_rate=0.01, random_state=1).fit(X, y)
    assert (other.predict_proba(X) == model.predict_proba(X)).all()


def test_a_trained_network_can_be_trained_further(digits):
    from flowmx.sklearn import NetworkClassifier

    X, y = digits
    first = NetworkClassifier(max_iter=5, random_state=0).fit(X[:600], y[:600])
    later = NetworkClassifier(first.net_, max_iter=1, learning_rate=1e-9, random_state=3).fit(X[:600], y[:600])
    np.testing.assert_allclose(later.predict_proba(X[600:700]), first.predict_proba(X[600:700]), rtol=1e-3, atol=1e-5)


def test_random_state_seeds_without_changing_other_generators(digits):
    from sklearn.base import clone

    from flowmx.sklearn import NetworkClassifier

    X, y = digits[0][:200].reshape(-1, 1, 8, 8), digits[1][:200]
    mx.random.seed(5)
    expected = mx.nd.random.normal(shape=(3,)).asnumpy()
    mx.random.seed(5)
    model = NetworkClassifier(convolutional(10), max_iter=2, random_state=7)
    first = model.fit(X, y).predict_proba(X)
    assert (mx.nd.random.normal(shape=(3,)).asnumpy() == expected).all()
    assert (clone(model).fit(X, y).predict_proba(X) == first).all()
    assert (clone(model).set_params(random_state=8).fit(X, y).predict_proba(X) != first).any()


def test_partial_fit_continues_after_pickling(digits):
    from flowmx.sklearn import NetworkClassifier

    X, y = digits
    model = NetworkClassifier(hidden_layer_sizes=(16,), random_state=0)
    model.partial_fit(X[:300], y[:300], classes=np.arange(10))
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict_proba(X[:50]) == model.predict_proba(X[:50])).all()
    for estimator in (model, copy):
        estimator.partial_fit(X[300:600], y[300:600])
    assert (copy.predict_proba(X[:50]) == model.predict_proba(X[:50])).all()
    np.testing.assert_array_equal(model.loss_curve_, copy.loss_curve_)
    assert model.n_iter_ == 2
    with pytest.raises(ValueError, match="11, which is not in classes_"):
        model.partial_fit(X[:2], [3, 11])


def test_searches_and_cross_validation(digits):
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from flowmx.sklearn import NetworkClassifier, NetworkRegressor

    X, y = digits[0][:300], digits[1][:300]
    search = GridSearchCV(NetworkClassifier(max_iter=4, random_state=0), {"learning_rate": [1e-9, 0.01]}, cv=2)
    assert search.fit(X, y).best_params_ == {"learning_rate": 0.01}
    X, y = load_diabetes(return_X_y=True)
    model = make_pipeline(StandardScaler(), NetworkRegressor(max_iter=30, learning_rate=0.01, random_state=0))
    assert cross_val_score(model, X, (y - y.mean()) / y.std(), cv=3).mean() > 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": 0}, "max_iter is 0, expected an integer of at least 1"),
        ({"batch_size": 2.5}, "batch_size is 2.5, expected an integer"),
        ({"learning_rate": 0}, "learning_rate is 0, expected a positive number"),
        ({"hidden_layer_sizes": (4, 0)}, r"hidden_layer_sizes is \(4, 0\), expected sizes"),
        ({"net": 3}, "net is int, expected a gluon.Block"),
        ({"net": nn.Dense(3)}, r"net returns shape \(1, 3\) for one sample, expected \(1, 10\)"),
        (
            {"learning_rate": 1e20, "optimizer": "sgd"},
            "the mean loss of epoch .* scale the data, or lower learning_rate",
        ),
    ],
)
def test_refuses_invalid_arguments(digits, options, message):
    from flowmx.sklearn import NetworkClassifier

    with pytest.raises((ValueError, TypeError), match=message):
        NetworkClassifier(**options).fit(digits[0][:200], digits[1][:200])


def test_an_untrained_estimator_is_an_error():
    from sklearn.exceptions import NotFittedError

    from flowmx.sklearn import NetworkRegressor

    with pytest.raises(NotFittedError):
        NetworkRegressor().predict([[1.0]])


def test_scikit_learn_is_imported_on_first_use(new_python):
    result = subprocess.run(
        [sys.executable, "-c", "import sys; import flowmx as mx; assert 'sklearn' not in sys.modules; mx.sklearn"],
        env={**os.environ}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
