"""Trackers report a training to TensorBoard, MLflow and Weights & Biases."""

import math

import numpy as np
import pytest

import flowmx as mx
from flowmx.contrib import tracking
from flowmx.gluon.contrib.estimator import Estimator

RNG = np.random.default_rng(3)
X = RNG.standard_normal((48, 5)).astype("float32")
Y = (X.sum(1) > 0).astype("float32")


class Kept(tracking.Tracker):
    """A tracker that records its calls."""

    def __init__(self, every=1):
        super().__init__(every)
        self.told = []

    def write(self, values, step):
        self.told.append((step, values))


def fit(tracker, epochs=2):
    data = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(data, name="softmax"), context=mx.cpu())
    module.fit(
        mx.io.NDArrayIter(X, Y, 16), eval_data=mx.io.NDArrayIter(X, Y, 16), num_epoch=epochs,
        batch_end_callback=tracker.batch, epoch_end_callback=tracker.epoch, eval_end_callback=tracker.evaluation,
    )  # fmt: skip
    return module


def estimator():
    net = mx.gluon.nn.Dense(2, in_units=5)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    instance = Estimator(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer=trainer, context=mx.cpu())
    instance.logger.handlers.clear()
    return instance


def batches():
    return [(mx.nd.array(X[i : i + 16]), mx.nd.array(Y[i : i + 16])) for i in range(0, 48, 16)]


def read_back(folder):
    """Return the curves of a folder as (step, value) pairs, read by TensorBoard itself."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(each.step, each.value) for each in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_a_module_reports_batches_epochs_and_evaluations():
    tracker = Kept()
    module = fit(tracker)
    assert [step for step, values in tracker.told if "train/accuracy" in values] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert [values["epoch"] for _, values in tracker.told if "epoch" in values] == [1.0, 2.0]
    (score,) = module.score(mx.io.NDArrayIter(X, Y, 16), "acc")
    assert tracker.told[-1] == (6, {"validation/accuracy": score[1]})


@pytest.mark.parametrize(("every", "steps"), [(2, [2, 3, 4, 6, 6]), (None, [3, 6])])
def test_training_metrics_are_written_as_often_as_asked_for(every, steps):
    tracker = Kept(every)
    fit(tracker)
    assert [step for step, values in tracker.told if "train/accuracy" in values] == steps


def test_every_is_refused_below_one(tmp_path):
    with pytest.raises(ValueError, match="every is 0, expected at least 1 batch, or None"):
        tracking.TensorBoard(tmp_path, every=0)


def test_an_estimator_reports_the_same():
    tracker, instance = Kept(), estimator()
    instance.fit(batches(), batches(), epochs=2, event_handlers=[tracker])
    assert [step for step, _ in tracker.told] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert set(tracker.told[0][1]) == {"train/accuracy", "train/softmaxcrossentropyloss"}
    assert tracker.told[-1][1]["validation/accuracy"] == instance.val_metrics[0].get()[1]


async def test_in_coroutines_writing_happens_in_order_and_before_the_end():
    tracker, instance = Kept(), estimator()
    await instance.fit_async(batches(), epochs=1, event_handlers=[tracker])
    assert [step for step, _ in tracker.told] == [1, 2, 3, 3]
    await tracker.log({"own": 1.0})
    assert tracker.told[-1] == (3, {"own": 1.0})


def test_a_failed_write_ends_the_training():
    class Full(Kept):
        def write(self, values, step):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fit(Full())


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard_reads_a_training_back(tmp_path):
    with tracking.TensorBoard(tmp_path) as tracker:
        module = fit(tracker)
        tracker.log({"diverged": math.nan})
    assert tracker.path.parent == tmp_path
    curves = read_back(tmp_path)
    assert [step for step, _ in curves["train/accuracy"]] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert curves["epoch"] == [(3, 1.0), (6, 2.0)]
    (score,) = module.score(mx.io.NDArrayIter(X, Y, 16), "acc")
    assert curves["validation/accuracy"][-1] == (6, pytest.approx(score[1]))
    assert math.isnan(curves["diverged"][0][1])


@pytest.mark.filterwarnings("ignore")
def test_mxnets_callback_writes_without_mxboard(tmp_path):
    from flowmx.compat.tensorboard import LogMetricsCallback

    metric = mx.metric.Loss()
    metric.accumulate(2.0, 1)
    LogMetricsCallback(str(tmp_path), prefix="test")(mx.model.BatchEndParam(3, 1, metric, None))
    assert read_back(tmp_path) == {"test-loss": [(3, 2.0)]}


def test_two_trackers_of_one_folder_have_a_file_each(tmp_path):
    with tracking.TensorBoard(tmp_path) as one, tracking.TensorBoard(tmp_path) as other:
        assert one.path != other.path


@pytest.mark.parametrize(("kind", "package"), [("MLflow", "mlflow"), ("WandB", "wandb")])
def test_a_missing_package_is_named(kind, package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ImportError, match=f"pip install {package}"):
        getattr(tracking, kind)()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_the_metrics_of_a_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # from MLflow 3.17 on files must be asked for
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("digits")
    with tracking.MLflow(every=1) as tracker:
        fit(tracker)
    assert mlflow.active_run() is None
    history = mlflow.MlflowClient().get_metric_history(tracker.run_id, "train/accuracy")
    assert sorted(each.step for each in history) == [1, 2, 3, 3, 4, 5, 6, 6]
    with mlflow.start_run() as active_run, tracking.MLflow() as tracker:
        assert tracker.run_id == active_run.info.run_id
    assert mlflow.MlflowClient().get_run(active_run.info.run_id).info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_the_metrics_of_a_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with tracking.WandB(project="digits", mode="offline", dir=str(tmp_path)) as tracker:
        fit(tracker)
        assert tracker.run.summary["validation/accuracy"] >= 0
        with pytest.raises(ValueError, match=r"a run is active, so \['project'\]"):
            tracking.WandB(project="other")
    assert wandb.run is None
    wandb.teardown()  # its process writes the file out
    (written,) = tmp_path.rglob("*.wandb")
    assert all(name in written.read_bytes() for name in (b"train/accuracy", b"validation/accuracy", b"epoch"))
