"""gluonts 0.10.4: its MXNet forecasters. Losses and gradients of known weights; training and prediction."""

import mxnet as mx
import numpy as np
import pandas as pd
from filling import fill, flat

HISTORY, AHEAD = 48, 6


def dataset():
    """Three series of hours."""
    from gluonts.dataset.common import ListDataset

    hours = np.arange(HISTORY + 2 * AHEAD)
    series = [10 + n + 3 * np.sin(hours / 24 * 2 * np.pi + n) for n in range(3)]
    return ListDataset([{"start": pd.Timestamp("2020-01-01", freq="H"), "target": each} for each in series], freq="H")


def estimator(kind):
    """A small forecaster of each kind."""
    from gluonts.mx.distribution import StudentTOutput  # noqa: F401  (its module is one that users import)
    from gluonts.mx.trainer import Trainer

    trainer = Trainer(epochs=2, num_batches_per_epoch=2, learning_rate=1e-3, hybridize=kind != "wavenet")
    options = {"freq": "H", "prediction_length": AHEAD, "trainer": trainer}
    if kind == "deepar":
        from gluonts.model.deepar import DeepAREstimator

        return DeepAREstimator(**options, context_length=12, num_layers=1, num_cells=8, dropout_rate=0.0)
    if kind == "feedforward":
        from gluonts.model.simple_feedforward import SimpleFeedForwardEstimator

        options.pop("freq")
        return SimpleFeedForwardEstimator(**options, num_hidden_dimensions=[8], context_length=12)
    if kind == "mqcnn":
        from gluonts.model.seq2seq import MQCNNEstimator

        return MQCNNEstimator(**options, context_length=24)
    if kind == "mqrnn":
        from gluonts.model.seq2seq import MQRNNEstimator

        return MQRNNEstimator(**options, context_length=24)
    if kind == "transformer":
        from gluonts.model.transformer import TransformerEstimator

        return TransformerEstimator(**options, context_length=12, model_dim=8, num_heads=2, dropout_rate=0.0)
    if kind == "wavenet":
        from gluonts.model.wavenet import WaveNetEstimator

        return WaveNetEstimator(**options, num_parallel_samples=10, embedding_dimension=3, n_residue=4, n_skip=4)
    if kind == "nbeats":
        from gluonts.model.n_beats import NBEATSEstimator

        return NBEATSEstimator(**options, num_stacks=2, widths=[8], context_length=12)
    assert kind == "canonical", kind
    from gluonts.model.canonical import CanonicalRNNEstimator

    return CanonicalRNNEstimator(**options, context_length=12, num_layers=1, num_cells=8)


def training(kind):
    """Loss and gradients of known weights on the first batch that the package itself makes, without shuffling."""

    def run():
        from gluonts.itertools import Cached  # noqa: F401
        from gluonts.mx.batchify import as_in_context  # noqa: F401
        from gluonts.mx.util import get_hybrid_forward_input_names

        np.random.seed(0)
        mx.random.seed(0)
        forecaster = estimator(kind)
        data = dataset()
        transformation = forecaster.create_transformation()
        network = forecaster.create_training_network()
        names = get_hybrid_forward_input_names(type(network))
        if hasattr(forecaster, "create_training_data_loader"):
            from gluonts.env import env

            with env._let(max_idle_transforms=100):
                transformed = transformation.apply(data, is_train=True)
            loader = forecaster.create_training_data_loader(transformed)
        batch = next(iter(loader))
        inputs = [batch[name] for name in names]
        network.initialize(mx.init.Zero())
        network(*inputs)
        fill(network, inputs)
        with mx.autograd.record():
            loss = network(*inputs)
            first = loss[0] if isinstance(loss, (list, tuple)) else loss
        first.backward()
        gradients = [
            p.grad() for p in network.collect_params().values() if p.grad_req != "null" and p._grad_stype == "default"
        ]
        return flat(first, "loss") | flat(gradients, "gradient")

    return run


def forecasting(kind):
    """Training and prediction to their ends; forecasts are drawn at random, so their shapes are compared."""

    def run():
        np.random.seed(0)
        mx.random.seed(0)
        predictor = estimator(kind).train(dataset())
        results = {}
        for number, forecast in enumerate(predictor.predict(dataset())):
            mean = np.asarray(forecast.quantile(0.5))
            assert np.isfinite(mean).all()
            results[f"shape.{number}"] = np.array(mean.shape)
        return results

    return run


def distributions():
    """Log-likelihoods and means of its distributions."""
    from gluonts.mx import distribution as d

    x = mx.nd.array([0.5, 1.5, 2.5])
    one, two = mx.nd.array([0.4, 1.0, 2.0]), mx.nd.array([1.0, 0.5, 0.7])
    distributions_by_name = {
        "gaussian": d.Gaussian(one, two), "laplace": d.Laplace(one, two), "gamma": d.Gamma(one, two), "beta": None,
        "student": d.StudentT(one, two, two + 3), "negative binomial": d.NegativeBinomial(one, two),
        "poisson": d.Poisson(one), "uniform": d.Uniform(one - 3, two + 4),
    }  # fmt: skip
    return flat(
        [[each.log_prob(x), each.mean] for name, each in sorted(distributions_by_name.items()) if each is not None]
    )


KINDS = ["deepar", "feedforward", "mqcnn", "mqrnn", "transformer", "wavenet", "nbeats", "canonical"]
CASES = {f"{kind}: loss": training(kind) for kind in KINDS}
CASES |= {f"{kind}: forecast": forecasting(kind) for kind in KINDS}
CASES["distributions"] = distributions
