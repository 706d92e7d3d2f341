# ruff: noqa (as its users write it)
"""A face embedding with an angular margin: a loop in the manner of insightface's train.py, with custom
iterator, metrics and callbacks."""

import logging
import os
import sys

import mxnet as mx
import numpy as np

logging.getLogger().setLevel(logging.WARNING)
folder = sys.argv[1]
mx.random.seed(3)
np.random.seed(3)
IDENTITIES, EMBEDDING, BATCH = 6, 16, 24


class AccMetric(mx.metric.EvalMetric):
    def __init__(self):
        self.axis = 1
        super(AccMetric, self).__init__("acc", axis=self.axis, output_names=None, label_names=None)
        self.losses = []

    def update(self, labels, preds):
        label = labels[0].asnumpy().astype("int32").flatten()
        pred_label = mx.ndarray.argmax(preds[1], axis=self.axis).asnumpy().astype("int32").flatten()
        self.sum_metric += (pred_label == label).sum()
        self.num_inst += len(label)


class FaceImageIter(mx.io.DataIter):
    """Reads a record file at random, decodes, mirrors and stacks."""

    def __init__(self, batch_size, data_shape, path_imgrec, shuffle=False, rand_mirror=False):
        super(FaceImageIter, self).__init__()
        self.imgrec = mx.recordio.MXIndexedRecordIO(path_imgrec[:-4] + ".idx", path_imgrec, "r")
        self.seq = list(self.imgrec.keys)
        self.batch_size, self.data_shape = batch_size, data_shape
        self.shuffle, self.rand_mirror = shuffle, rand_mirror
        self.provide_data = [("data", (batch_size,) + data_shape)]
        self.provide_label = [("softmax_label", (batch_size,))]
        self.reset()

    def reset(self):
        self.cur = 0
        if self.shuffle:
            np.random.shuffle(self.seq)

    def next(self):
        if self.cur + self.batch_size > len(self.seq):
            raise StopIteration
        batch_data = mx.nd.empty((self.batch_size,) + self.data_shape)
        batch_label = mx.nd.empty((self.batch_size,))
        for i in range(self.batch_size):
            header, s = mx.recordio.unpack(self.imgrec.read_idx(self.seq[self.cur + i]))
            img = mx.image.imdecode(s)
            if self.rand_mirror and np.random.randint(2):
                img = mx.ndarray.flip(data=img, axis=1)
            batch_data[i][:] = mx.nd.transpose(img, axes=(2, 0, 1))
            batch_label[i][:] = header.label
        self.cur += self.batch_size
        return mx.io.DataBatch([batch_data], [batch_label], 0)


def get_symbol(margin=0.3, scale=16.0):
    data = (mx.sym.Variable("data") - 127.5) * 0.0078125
    net = mx.sym.Convolution(data, num_filter=8, kernel=(3, 3), stride=(1, 1), no_bias=True, name="conv0")
    net = mx.sym.BatchNorm(net, fix_gamma=False, eps=2e-5, momentum=0.9, name="bn0")
    net = mx.sym.LeakyReLU(net, act_type="prelu", name="relu0")
    net = mx.sym.FullyConnected(net, num_hidden=EMBEDDING, name="pre_fc1")
    embedding = mx.sym.BatchNorm(net, fix_gamma=True, eps=2e-5, momentum=0.9, name="fc1")
    label = mx.sym.Variable("softmax_label")
    weight = mx.sym.Variable("fc7_weight", shape=(IDENTITIES, EMBEDDING), lr_mult=1.0)
    weight = mx.sym.L2Normalization(weight, mode="instance")
    normed = mx.sym.L2Normalization(embedding, mode="instance", name="fc1n") * scale
    fc7 = mx.sym.FullyConnected(normed, weight=weight, no_bias=True, num_hidden=IDENTITIES, name="fc7")
    fc7 = fc7 - mx.sym.one_hot(label, depth=IDENTITIES, on_value=scale * margin, off_value=0.0)
    softmax = mx.sym.SoftmaxOutput(data=fc7, label=label, name="softmax", normalization="valid")
    return mx.sym.Group([mx.sym.BlockGrad(embedding), softmax])


path, prefix = os.path.join(folder, "faces"), os.path.join(folder, "face-model")
train = mx.io.PrefetchingIter(FaceImageIter(BATCH, (3, 12, 12), path + ".rec", shuffle=True, rand_mirror=True))
opt = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=5e-4, rescale_grad=1.0)
lr_steps, global_step = [20, 32], [0]


def _batch_callback(param):
    global_step[0] += 1
    for step in lr_steps:
        if global_step[0] == step:
            opt.lr *= 0.1
    if global_step[0] % 12 == 0:
        arg, aux = model.get_params()
        mx.model.save_checkpoint(prefix, global_step[0] // 12, model.symbol, arg, aux)


initializer = mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
model = mx.mod.Module(context=[mx.cpu()], symbol=get_symbol())
model.fit(
    train, begin_epoch=0, num_epoch=7, eval_data=None, eval_metric=mx.metric.CompositeEvalMetric([AccMetric()]),
    kvstore="device", optimizer=opt, initializer=initializer, arg_params=None, aux_params=None, allow_missing=True,
    batch_end_callback=_batch_callback, epoch_end_callback=None,
)  # fmt: skip
print("steps", global_step[0], "lr", round(opt.lr, 6))

# Deploy: cut the head off, keep the embedding, compare faces.
sym, arg_params, aux_params = mx.model.load_checkpoint(prefix, 3)
sym = sym.get_internals()["fc1_output"]
deployed = mx.mod.Module(symbol=sym, context=mx.cpu(), label_names=None)
deployed.bind(data_shapes=[("data", (BATCH, 3, 12, 12))], for_training=False)
deployed.set_params(arg_params, aux_params, allow_extra=True)
faces = FaceImageIter(BATCH, (3, 12, 12), path + ".rec").next()
deployed.forward(mx.io.DataBatch(data=faces.data), is_train=False)
embeddings = deployed.get_outputs()[0].asnumpy()
embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
labels = faces.label[0].asnumpy()
same = labels[:, None] == labels[None]
similarity = embeddings @ embeddings.T
print("verified", bool(similarity[same].min() > similarity[~same].max()))
