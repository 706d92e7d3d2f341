# ruff: noqa (as its users write it)
"""A classifier on images in a .rec file, with Module: as users of MXNet's example/image-classification wrote it."""

import argparse
import logging
import os
import random

import mxnet as mx

logging.basicConfig(level=logging.WARNING)

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default=".")
parser.add_argument("--num-epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--kv-store", default="local")
args = parser.parse_args()

random.seed(1)
mx.random.seed(1)


def get_symbol(num_classes):
    data = mx.symbol.Variable("data")
    net = mx.symbol.Convolution(data=data, num_filter=8, kernel=(3, 3), name="conv1")
    net = mx.symbol.BatchNorm(data=net, fix_gamma=False, eps=2e-5, momentum=0.9, name="bn1")
    net = mx.symbol.Activation(data=net, act_type="relu", name="relu1")
    net = mx.symbol.Pooling(data=net, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")
    net = mx.symbol.Pooling(data=net, kernel=(1, 1), pool_type="max", name="pool2")
    net = mx.symbol.FullyConnected(data=mx.symbol.Flatten(data=net), num_hidden=num_classes, name="fc1")
    flat = mx.symbol.FullyConnected(data=mx.symbol.Flatten(data=data), num_hidden=num_classes, name="fc2")
    return mx.symbol.SoftmaxOutput(data=net + flat, name="softmax")


def data_iter(name, shuffle):
    return mx.io.ImageRecordIter(
        path_imgrec=os.path.join(args.folder, name + ".rec"),
        path_imgidx=os.path.join(args.folder, name + ".idx"),
        data_shape=(3, 16, 16), batch_size=args.batch_size, shuffle=shuffle, rand_crop=shuffle, rand_mirror=shuffle,
        mean_r=128, mean_g=128, mean_b=128, scale=1 / 64, preprocess_threads=2,
    )  # fmt: skip


train, val = data_iter("train", True), data_iter("val", False)

prefix = os.path.join(args.folder, "model")
model = mx.mod.Module(context=mx.cpu(), symbol=get_symbol(2))
settings = dict(
    num_epoch=args.num_epochs, eval_data=val, eval_metric=["accuracy", mx.metric.CrossEntropy()],
    kvstore=args.kv_store, optimizer="sgd",
    optimizer_params={
        "learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4,
        "lr_scheduler": mx.lr_scheduler.MultiFactorScheduler(step=[16], factor=0.1),
    },
    initializer=mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
    batch_end_callback=mx.callback.Speedometer(args.batch_size, 4),
    epoch_end_callback=mx.callback.do_checkpoint(prefix),
)  # fmt: skip
model.fit(train, **settings)
score = model.score(val, ["acc"])
print("accuracy", dict(score)["accuracy"])

# Another process: load the checkpoint and predict.
symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, args.num_epochs)
again = mx.mod.Module(symbol=symbol, context=mx.cpu(), label_names=None)
again.bind(for_training=False, data_shapes=[("data", (args.batch_size, 3, 16, 16))])
again.set_params(arg_params, aux_params, allow_missing=True)
val.reset()
probabilities = again.predict(val)
print("predicted", probabilities.shape, "same", float(dict(score)["accuracy"]) > 0.9)
