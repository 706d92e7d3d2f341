"""MXNet 1.9.1's own ``example/`` folder: its scripts, unchanged, with synthetic data.

The scripts come from the git directory that ``MXNET_GIT`` names, at the tag 1.9.1; none is stored here. Each
script runs in a separate process. A case passes if the script exits with status 0, or prints the expected output.
"""

import gzip
import io
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

TAG = "1.9.1"
LIMIT = float(os.environ.get("EXAMPLES_LIMIT", "300"))
"""Seconds that a script may take; each needs at most some thirty of a quiet machine."""

SUBSTITUTIONS = {
    r"\b(np|numpy)\.(int|float|bool|object)\b": r"\2",  # NumPy 1.24 took these names away
    r"\btime\.clock\(\)": "time.perf_counter()",  # Python 3.8 took it away
    r"\.as_matrix\(\)": ".values",  # pandas 1.0
}
"""Substitutions, in all sources alike, for names that current Python or packages have removed."""

START = """
import os, runpy, sys
import numpy as np
import mxnet as mx
sys.path[0] = os.path.dirname(sys.argv[1])
mx.gpu = mx.context.gpu = mx.cpu                      # a machine without GPUs
import mxnet.gluon.contrib.data
for module in list(sys.modules.values()):
    if "check_sha1" in vars(module):
        module.check_sha1 = lambda *_: True           # made-up data has other checksums
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Starts a script on a machine without GPUs and a network."""

STAND_INS = {
    "gym.py": '''
"""A pole on a cart, as the gym of those days had it."""
import numpy as np

class _Space:
    shape, n = (4,), 2

class CartPole:
    observation_space = action_space = _Space()

    def seed(self, seed):
        self.random = np.random.RandomState(seed)

    def reset(self):
        self.state = self.random.uniform(-0.05, 0.05, 4)
        return self.state

    def step(self, action):
        x, v, angle, turn = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        twist = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        shove = push - 0.05 * twist * np.cos(angle) / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * shove, angle + 0.02 * turn, turn + 0.02 * twist])
        return self.state, 1.0, bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2), {}

def make(name):
    return CartPole()
''',
    "numba.py": "jit = lambda function: function\n",
    "word2vec.py": "",
}  # fmt: skip
"""Minimal replacements of packages that scripts import and that vanished, changed, or download data."""


class Case(NamedTuple):
    """A script of ``example/``: its command line, its requirements, and its output."""

    script: str
    arguments: str = ""
    data: Callable[[Path], None] = lambda folder: None
    shows: str = ""
    """A regular expression that the output must match."""
    enough: bool = False
    """True where the script would run on for long: it is ended when it has shown that."""
    driver: str = ""
    """Code that uses the script as a module, where it has no main program."""
    numbers: bool = False
    """True where the numbers in the output follow from the script alone."""


# Made-up data ------------------------------------------------------------------------------------------------------


def pictures(number, height, width, channels=1, classes=10):
    """Pictures of a bright block whose place tells the class, and their classes."""
    random = np.random.RandomState(7)
    labels = random.randint(0, classes, number).astype("uint8")
    images = random.randint(0, 60, (number, height, width, channels)).astype("uint8")
    for each, label in zip(images, labels, strict=True):
        top, left = divmod(int(label), 4)
        each[top * height // 4 :, left * width // 4 :][: height // 4, : width // 4] = 220
    return images, labels


def digits(folder, train=600, test=200):
    """MNIST's four files, plain and compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in {"train": train, "t10k": test}.items():
        images, labels = pictures(number, 28, 28)
        for kind, header, content in (
            ("images-idx3", struct.pack(">IIII", 2051, number, 28, 28), images),
            ("labels-idx1", struct.pack(">II", 2049, number), labels),
        ):
            path, data = folder / f"{name}-{kind}-ubyte", header + content.tobytes()
            path.write_bytes(data)
            with gzip.open(f"{path}.gz", "wb", 1) as file:
                file.write(data)


def cifar(folder, number=128):
    """CIFAR-10's six files."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = pictures(number, 32, 32, 3)
    rows = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(number, -1)], 1)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def jpeg(picture):
    """A picture's bytes as a JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "jpeg")
    return buffer.getvalue()


def records(path, number=256, size=32, classes=10):
    """A record file of JPEGs, with its index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images, labels = pictures(number, size, size, 3, classes)
    rows = [f"{place}\t{label}.0\t{place}.jpg\n" for place, label in enumerate(labels)]
    path.with_suffix(".lst").write_text("".join(rows))
    with path.open("wb") as file, path.with_suffix(".idx").open("w") as index:
        for place, (picture, label) in enumerate(zip(images, labels, strict=True)):
            index.write(f"{place}\t{file.tell()}\n")
            content = struct.pack("<IfQQ", 0, float(label), place, 0) + jpeg(picture)
            file.write(struct.pack("<II", 0xCED7230A, len(content)) + content + b"\0" * (-len(content) % 4))


def words(number, kinds=60, seed=3):
    """A text of made-up words, the frequent ones first."""
    random = np.random.RandomState(seed)
    return [f"w{int(n)}" for n in np.minimum(random.exponential(kinds / 5, number), kinds - 1)]


def sentences(path, number, lengths=(5, 25), kinds=60, seed=3):
    """A file with a sentence on each line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    text = words(number * lengths[1], kinds, seed)
    rows = [
        " ".join(text[n * lengths[1] :][: random.randint(lengths[0], min(lengths[1], 26) + 1)]) for n in range(number)
    ]
    path.write_text("\n".join(rows) + "\n")


def sherlock(folder, number=700):
    """The three parts of a novel."""
    for part in ("train", "valid", "test"):
        sentences(folder / "data" / f"sherlockholmes.{part}.txt", number, (6, 25))


def ratings(path, number=600, separator="\t", people=40, films=30):
    """Lines of user, item, rating and time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(5)
    rows = np.stack([random.randint(0, people, number), random.randint(0, films, number), random.randint(1, 6, number)])
    path.write_text("".join(separator.join(map(str, [*row, 0])) + "\n" for row in rows.T))


def movielens(folder):
    (folder / "ml-100k.zip").write_bytes(b"")
    ratings(folder / "ml-100k" / "u1.base")
    ratings(folder / "ml-100k" / "u1.test", 200)


def movielens10m(folder):
    (folder / "ml-10m.zip").write_bytes(b"")
    ratings(folder / "ml-10M100K" / "r1.train", 1000, "::")
    ratings(folder / "ml-10M100K" / "r1.test", 400, "::")


def converted_ratings(folder):
    ratings(folder / "data" / "ml-20m" / "train-ratings.csv", 300)
    ratings(folder / "data" / "ml-20m" / "test-ratings.csv", 20)
    random = np.random.RandomState(1)
    rows = ["\t".join(map(str, random.randint(0, 30, 20))) for _ in range(20)]
    (folder / "data" / "ml-20m" / "test-negative.csv").write_text("\n".join(rows) + "\n")


def reviews(folder):
    for kind, seed in {"pos": 1, "neg": 2}.items():
        sentences(folder / "data" / "rt-polaritydata" / f"rt-polarity.{kind}", 800, (5, 20), seed=seed)


def text8(folder):
    """A text in which each word comes often enough to be kept."""
    (folder / "data").mkdir()
    (folder / "data" / "text8").write_text(" ".join(words(20000, 80)))


def wikitext(folder):
    for part in ("train", "valid", "test"):
        sentences(folder / "data" / f"wiki.{part}.tokens", 150, (10, 20))


def electricity(folder):
    for name in ("data", "models"):
        (folder / name).mkdir()
    hours = np.arange(420)[:, None]
    table = 5 + np.sin(hours / 24 * 2 * np.pi + np.arange(6)) + np.random.RandomState(0).rand(420, 6)
    np.savetxt(folder / "data" / "electricity.txt", table, delimiter=",")


def entities(folder):
    """Tagged sentences, one word on a line."""
    (folder / "data").mkdir()
    rows, tags = ["Sentence #,Word,POS,Tag"], ["O", "B-per", "I-per", "B-geo"]
    for sentence in range(60):
        for place, word in enumerate(words(8, 40, sentence)):
            start = f"Sentence: {sentence + 1}" if place == 0 else ""
            rows.append(f"{start},{word},NN,{tags[int(word[1:]) % 4]}")
    (folder / "data" / "ner_dataset.csv").write_text("\n".join(rows) + "\n")
    subprocess.run([sys.executable, "preprocess.py"], cwd=folder / "src", check=True)


def houses(folder):
    random = np.random.RandomState(2)
    head = "Id,MSSubClass,LotArea,Street,SaleCondition"
    for name, number in {"train": 100, "test": 40}.items():
        rows = [
            f"{n},{random.randint(20, 90)},{random.randint(1000, 9000)},{'Pave' if n % 3 else 'Grvl'},Normal"
            + (f",{random.randint(50000, 300000)}" if name == "train" else "")
            for n in range(number)
        ]
        (folder / f"{name}.csv").write_text("\n".join([head + (",SalePrice" if name == "train" else ""), *rows]) + "\n")


def sick(folder):
    """Pairs of sentences, their trees, how alike they are; and vectors of words."""
    for part in ("train", "dev", "test"):
        here = folder / "data" / "sick" / part
        for side, seed in {"a": 1, "b": 2}.items():
            text = [words(6, 30, seed * 100 + n) for n in range(20)]
            here.mkdir(parents=True, exist_ok=True)
            (here / f"{side}.toks").write_text("\n".join(map(" ".join, text)) + "\n")
            (here / f"{side}.parents").write_text("2 0 2 3 4 5\n" * 20)
        (here / "sim.txt").write_text("".join(f"{1 + n % 9 / 2}\n" for n in range(20)))
    (folder / "data" / "glove").mkdir()
    random = np.random.RandomState(0)
    rows = [f"w{n} " + " ".join(f"{x:.3f}" for x in random.randn(300)) for n in range(30)]
    (folder / "data" / "glove" / "glove.840B.300d.txt").write_text("\n".join(rows) + "\n")


def photographs(folder, number, height, width):
    folder.mkdir(parents=True, exist_ok=True)
    for place, picture in enumerate(pictures(number, height, width, 3)[0]):
        Image.fromarray(picture).save(folder / f"{place}.jpg")


def segmented(folder):
    """Photographs where Berkeley's are kept."""
    for part in ("train", "test"):
        photographs(folder / "home" / ".mxnet" / "datasets" / "BSDS500" / "images" / part, 8, 321, 321)


def birds(folder):
    """Photographs of 200 kinds, with boxes."""
    here = folder / "data" / "CUB_200_2011"
    photographs(here / "images", 220, 64, 64)
    for name, row in {
        "images.txt": "{0} {0}.jpg", "image_class_labels.txt": "{0} {1}", "bounding_boxes.txt": "{0} 2.0 2.0 60.0 60.0"
    }.items():  # fmt: skip
        (here / name).write_text(
            "".join(row.format(n, n // 2 + 1 if n < 200 else 101 + n % 5) + "\n" for n in range(220))
        )


def hearts(folder):
    random = np.random.RandomState(4)
    for name, number in {"train": 32, "validate": 4}.items():
        np.savetxt(folder / f"{name}-64x64-data.csv", random.randint(0, 255, (number, 30 * 64 * 64)), "%d", ",")
        table = np.stack(
            [np.arange(number) // 2 + 1, random.randint(50, 99, number), random.randint(99, 300, number)], 1
        )
        np.savetxt(folder / f"{name}-label.csv", table, "%d", ",")
    (folder / "data").mkdir()
    (folder / "data" / "sample_submission_validate.csv").write_text("Id,P0\n1_Diastole,0\n1_Systole,0\n2_Systole,0\n")


def years(folder):
    """Songs' features in the form of svmlight."""
    import bz2

    (folder / "data").mkdir()
    random = np.random.RandomState(0)
    rows = [
        f"{1990 + n % 20} " + " ".join(f"{k + 1}:{x:.3f}" for k, x in enumerate(random.randn(90))) for n in range(400)
    ]
    (folder / "data" / "YearPredictionMSD.bz2").write_bytes(bz2.compress(("\n".join(rows) + "\n").encode()))


def paintings(folder):
    """Two pictures and VGG's weights."""
    import mxnet as mx

    photographs(folder / "input", 2, 64, 64)
    (folder / "model").mkdir()
    (folder / "output").mkdir()
    shapes, inputs = {}, 3
    for layer, outputs in zip(
        ["1_1", "1_2", "2_1", "2_2", "3_1", "3_2", "3_3", "3_4", "4_1", "4_2", "4_3", "4_4", "5_1"],
        [64] * 2 + [128] * 2 + [256] * 4 + [512] * 5,
        strict=True,
    ):
        shapes[f"arg:conv{layer}_weight"], shapes[f"arg:conv{layer}_bias"] = (outputs, inputs, 3, 3), (outputs,)
        inputs = outputs
    random = np.random.RandomState(0)
    weights = {
        name: mx.nd.array(random.randn(*shape) * 0.03 if len(shape) > 1 else np.zeros(shape))
        for name, shape in shapes.items()
    }
    mx.nd.save(str(folder / "model" / "vgg19.params"), weights)


def at(*parts):
    """The maker of digits in a folder of the script's."""
    return lambda folder: digits(folder.joinpath(*parts))


def rec(**options):
    """The maker of record files, by their paths with ``__`` for ``/``."""

    def make(folder):
        for name, number in options.items():
            records(folder / f"{name.replace('__', '/')}.rec", number)

    return make


# The cases ---------------------------------------------------------------------------------------------------------

RBM = (
    "--no-cuda --num-epoch 1 --k 2 --num-hidden 16 --ais-batch-size 10 --ais-num-batch 2 "
    "--ais-intermediate-steps 3 --ais-burn-in-steps 2"
)
RNN = "--num-epochs 1 --num-hidden 16 --num-embed 12 --batch-size 16"

EXAMPLES = [
    Case("module/mnist_mlp.py", "", at("data"), r"(?m)^accuracy="),
    Case("module/sequential_module.py", "", at("data"), r"Epoch\[1\] Validation-accuracy"),
    Case("module/python_loss.py", "", at("data"), r"Epoch\[9\] Validation-accuracy"),
    Case("numpy-ops/custom_softmax.py", "", at("data"), r"Epoch\[9\] Validation-accuracy"),
    Case("numpy-ops/weighted_logistic_regression.py", numbers=True),
    Case(
        "profiler/profiler_matmul.py", "--iter_num 3 --begin_profiling_iter 1 --end_profiling_iter 2", shows="duration:"
    ),
    Case("profiler/profiler_ndarray.py"),
    Case("profiler/profiler_imageiter.py", "", rec(test=640), r"\d"),
    Case(
        "recommenders/matrix_fact.py",
        "",
        movielens,
        r"Epoch \[1\], Training RMSE",
        driver="""
import mxnet as mx
from mxnet import gluon
from matrix_fact import train
from movielens_data import get_dataset
train_set, test_set = get_dataset()
class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.user, self.item = gluon.nn.Embedding(40, 8), gluon.nn.Embedding(30, 8)
            self.dense = gluon.nn.Dense(8, 'relu')
    def hybrid_forward(self, F, user, item):
        return (self.dense(self.user(user)) * self.item(item)).sum(axis=1)
net = Net()
net.initialize(mx.init.Xavier())
loaders = [gluon.data.DataLoader(each, 64, shuffle=True, last_batch='rollover') for each in (train_set, test_set)]
train(net, *loaders, epochs=2, ctx=[mx.cpu()])
""",
    ),
    Case("restricted-boltzmann-machine/binary_rbm_module.py", RBM, at(), "Preparing showcase", True),
    Case(
        "restricted-boltzmann-machine/binary_rbm_gluon.py",
        f"{RBM} --data-loader-num-worker 1",
        lambda folder: digits(folder / "home" / ".mxnet" / "datasets" / "mnist", 560, 160),
        "Preparing showcase",
        True,
    ),
    Case(
        "autoencoder/variational_autoencoder/VAE.py",
        shows="trained True",
        driver="""
import numpy as np
from VAE import VAE
x = np.random.RandomState(0).rand(200, 64).astype('float32')
model = VAE(n_latent=3, num_hidden_ecoder=32, num_hidden_decoder=32, x_train=x, batch_size=50, num_epoch=4)
mu, logvar = VAE.encoder(model, x)
z = VAE.sampler(mu, logvar)
print('trained', VAE.decoder(model, z).shape == (200, 64) and len(model.training_loss) == 4)
""",
    ),
    Case(
        "cnn_text_classification/text_cnn.py",
        "--gpus 0 --num-epochs 1 --num-embed 16",
        reviews,
        "Epoch.0. Validation-acc",
    ),
    Case(
        "dsd/mlp.py",
        "--pruning_switch_epoch 1,2 --weight_sparsity 0,50 --bias_sparsity 0,50",
        at("data"),
        "Finish traning",
    ),
    Case("gluon/mnist/mnist.py", "--epochs 2", at("data"), r"\[Epoch 1\] Validation: accuracy"),
    Case("gluon/lstm_crf/lstm_crf.py", "", shows=r"Epoch \[1\], Negative", enough=True),
    Case("gluon/actor_critic/actor_critic.py", "", shows="Episode 10\t", enough=True),
    Case(
        "gluon/dc_gan/dcgan.py",
        "--dataset mnist --nepoch 1 --batch-size 16 --ngf 8 --ndf 8 --niter 2 --inception_score=",
        lambda folder: digits(folder / "data", 64, 32),
        "time: ",
    ),
    Case(
        "gluon/word_language_model/train.py",
        "--epochs 1 --emsize 16 --nhid 16 --batch_size 8 --bptt 8 --log-interval 20 --hybridize --tied",
        wikitext,
        "test ppl",
    ),
    Case("gluon/tree_lstm/main.py", "--epochs 1 --batch_size 5", sick, "Test|test"),
    Case("gluon/super_resolution/super_resolution.py", "--epochs 1 --test_batch_size 4", segmented, "avg psnr"),
    Case(
        "gluon/image_classification.py",
        "--dataset mnist --model mobilenet0.25 --epochs 1",
        at("data"),
        "validation: accuracy",
    ),
    Case(
        "gluon/image_classification.py",
        "--dataset cifar10 --model resnet18_v1 --use_thumbnail --mode hybrid --epochs 1",
        rec(data__cifar__train=128, data__cifar__test=64),
        r"validation: accuracy",
    ),
    Case("gluon/house_prices/kaggle_k_fold_cross_validation.py", "", houses, "fold validation"),
    Case(
        "gluon/sn_gan/train.py",
        "--epochs 1 --batch-size 16",
        lambda folder: cifar(folder / "home" / ".mxnet" / "datasets" / "cifar10", 16),
        "",
    ),
    Case(
        "gluon/embedding_learning/train.py",
        "--model resnet18_v2 --epochs 1 --batch-size 10 --batch-k 2 --log-interval 1",
        birds,
        r"\[Epoch 0, Iter 2\]",
        True,
    ),
    Case("image-classification/train_mnist.py", "--num-epochs 2", at("data"), r"Epoch\[1\] Validation-accuracy"),
    Case(
        "image-classification/train_mnist.py",
        "--num-epochs 1 --network lenet --add_stn",
        at("data"),
        r"Epoch\[0\] Validation-accuracy",
    ),
    Case(
        "image-classification/train_cifar10.py",
        "--num-epochs 1 --num-layers 8 --num-examples 128 --batch-size 32 --kv-store local",
        rec(data__cifar10_train=128, data__cifar10_val=64),
        r"Epoch\[0\] Validation-accuracy",
    ),
    Case(
        "image-classification/train_imagenet.py",
        "--benchmark 1 --network resnet --num-layers 18 --image-shape 3,64,64 --batch-size 4 "
        "--num-examples 40 --num-epochs 1 --disp-batches 2",
        shows=r"Epoch\[0\] Batch \[2-4\]",
        enough=True,
    ),
    Case("image-classification/benchmark_score.py", "--network squeezenet1.1 --batch-size 1", shows="images/sec: "),
    Case("image-classification/benchmark_score.py", "--network mobilenet --batch-size 1", shows="images/sec: "),
    Case(
        "model-parallel/matrix_factorization/train.py",
        "--num-epoch 1 --batch-size 64 --factor-size 8",
        movielens10m,
        "Validation-mse",
    ),
    Case(
        "multivariate_time_series/src/lstnet.py",
        "--num-epochs 1 --q 24 --num-filters 8 --recurrent-state-size 8 --seasonal-period 6 --batch-size 32",
        electricity,
        "(?i)validation|finished",
    ),
    Case(
        "named_entity_recognition/src/ner.py",
        "--num-epochs 1 --batch-size 8 --word-embed 16 --word-filters 8 --lstm-state-size 8",
        entities,
        "(?i)validation",
    ),
    Case("nce-loss/toy_softmax.py", "", shows=r"Epoch\[0\] Batch \[(0-)?50\]", enough=True),
    Case("nce-loss/toy_nce.py", "", shows=r"Epoch\[0\] Validation", enough=True),
    Case("nce-loss/wordvec.py", "", text8, r"Epoch\[0\] Train-", True),
    Case("nce-loss/wordvec_subwords.py", "", text8, r"Epoch\[0\] Train-", True),
    Case("nce-loss/lstm_word.py", "", text8, r"Epoch\[0\] Train-", True),
    Case(
        "neural-style/nstyle.py",
        "--gpu -1 --content-image input/0.jpg --style-image input/1.jpg --max-num-epochs 2 --max-long-edge 64",
        paintings,
        "epoch 1,",
    ),
    Case(
        "neural_collaborative_filtering/train.py",
        "--epoch 1 --batch-size 64 --layers [16,8] --factor-size-gmf 4 --workers 1 --eval-batch-size 10",
        converted_ratings,
        "Training completed",
    ),
    Case(
        "reinforcement-learning/parallel_actor_critic/train.py",
        "--env-type CartPole-v0 --num-envs 4 --num-episodes 4",
        shows="Batch 3 complete",
    ),
    Case("rnn/bucketing/lstm_bucketing.py", RNN, sherlock, r"Epoch\[0\] Validation-perplexity"),
    Case("rnn/bucketing/cudnn_rnn_bucketing.py", RNN, sherlock, r"Epoch\[0\] Validation-perplexity"),
    Case(
        "rnn/bucketing/cudnn_rnn_bucketing.py",
        f"{RNN} --rnntype gru --stack-rnn True --bidirectional --dropout 0.2",
        sherlock,
        r"Epoch\[0\] Validation-perplexity",
    ),
    Case(
        "rnn/word_lm/train.py",
        "--epochs 1 --emsize 16 --nhid 16 --batch_size 8 --bptt 8",
        sherlock,
        "Training completed",
    ),
    Case("stochastic-depth/sd_mnist.py", "", at("data"), r"Epoch\[1\] Validation-accuracy"),
    Case(
        "stochastic-depth/sd_cifar10.py",
        "",
        rec(data__cifar__train=256, data__cifar__test=128),
        r"Epoch\[0\] Validation-accuracy",
        True,
    ),
    Case("svrg_module/api_usage_example/example_api_train.py", "-e 3", shows="High Level API"),
    Case("svrg_module/api_usage_example/example_inference.py", "-e 3"),
    Case("svrg_module/linear_regression/train.py", "-e 2 -b 50", years),
    Case("kaggle-ndsb2/Train.py", "", hearts, r"Epoch\[1\] Time cost", True),
    Case(
        "gluon/lipnet/tests/test_beamsearch.py",
        shows="OK",
        driver="import unittest\nunittest.main('tests.test_beamsearch', argv=['x'])\n",
    ),
]


# Running -----------------------------------------------------------------------------------------------------------


def sources(top, folder):
    """Write the Python files of a folder of ``example/`` into a folder."""
    git = ["git", "--git-dir", os.environ["MXNET_GIT"]]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", TAG, f"example/{top}/"], capture_output=True, text=True, check=True
    )
    for path in listed.stdout.splitlines():
        if not path.endswith(".py"):
            continue
        text = subprocess.run([*git, "show", f"{TAG}:{path}"], capture_output=True, text=True, check=True).stdout
        for pattern, instead in SUBSTITUTIONS.items():
            text = re.sub(pattern, instead, text)
        place = folder / path.removeprefix("example/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def prepared(case, folder):
    """The command that runs a case in a folder where its sources and data have been made."""
    top = case.script.split("/")[0]
    sources(top, folder)
    home = folder / Path(case.script).parent
    data = home.parent if home.name == "src" else home
    stand_ins = folder / "stand_ins"
    for name, text in STAND_INS.items():
        (stand_ins / name).parent.mkdir(parents=True, exist_ok=True)
        (stand_ins / name).write_text(text)
    case.data(data)
    if (data / "home").exists():
        (data / "home").rename(folder / "home")
    script = folder / case.script
    if case.driver:
        script = (home.parent if home.name == "tests" else home) / "driver.py"
        script.write_text(case.driver)
    (folder / "start.py").write_text(START)
    environment = os.environ | {
        "HOME": str(folder / "home"), "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join([str(stand_ins), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }  # fmt: skip
    for name in ("MXNET_HOME", "FLOWMX_HOME"):
        environment.pop(name, None)
    return [sys.executable, str(folder / "start.py"), str(script), *case.arguments.split()], script.parent, environment


def output(case, folder):
    """Collect a script's output until it ends, or has printed enough; raises where it fails."""
    command, home, environment = prepared(case, folder)
    process = subprocess.Popen(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    late = threading.Event()

    def end():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    clock = threading.Timer(LIMIT, end)
    clock.start()
    lines, shown = [], not case.shows
    try:
        for line in process.stdout:
            lines.append(line)
            shown = shown or bool(re.search(case.shows, line))
            if shown and case.enough:
                break
        if not (shown and case.enough):
            process.wait()
    finally:
        clock.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = "".join(lines)
    if keep := os.environ.get("EXAMPLES_LOGS"):
        (Path(keep) / f"{title(case).replace('/', '_')[:120]}.log").write_text(text)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if late.is_set():
        raise TimeoutError(f"did not end within {LIMIT:.0f} s; last line: {last}")
    if not shown:
        raise RuntimeError(f"exit {process.returncode}, {case.shows!r} not shown; last line: {last}")
    if process.returncode and not case.enough:
        raise RuntimeError(f"exit {process.returncode}; last line: {last}")
    return text


def run(case):
    """Return a case as a function that returns the values to compare."""

    def outcome():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            text = output(case, Path(folder))
        if not case.numbers:
            return {"ended": np.ones(1)}
        return {"numbers": np.array([float(each) for each in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", text)])}

    return outcome


def title(case):
    """A case's name: its script, with what tells apart cases of the same script."""
    alike = [each for each in EXAMPLES if each.script == case.script]
    return case.script if len(alike) == 1 else f"{case.script} {case.arguments}"


CASES = {title(case): run(case) for case in EXAMPLES}
