"""The table of operators in ``hybrid_forward``: expressions of ``F`` and ``x``, by the axes that an instance has."""

from math import prod

from tests.modes.layers import LARGE, drawn
from tests.modes.network import Code, layer

ANY = (1, 2, 3, 4, 5)

# Expressions that leave the shape as it is.
SAME = {
    "F.relu(x) * F.sigmoid(x)": ANY,
    "x * 2 - 1": ANY,
    "1 / (1 + x * x)": ANY,
    "F.exp(-F.abs(x)) + F.log(1 + x * x)": ANY,
    "F.tanh(x) + F.arctan(x) * F.sin(x) - F.cos(x)": ANY,
    "F.sqrt(F.square(x) + 1) - F.rsqrt(F.abs(x) + 0.5)": ANY,
    "F.clip(x, -0.7, 0.7)": ANY,
    "F.where(x > 0, x, F.expm1(x))": ANY,
    "F.maximum(x, 0.1 * x) + F.minimum(x, -x)": ANY,
    "F.broadcast_maximum(x, F.mean(x, axis=-1, keepdims=True))": ANY,
    "F.softmax(x, axis=-1)": ANY,
    "F.log_softmax(x, axis=1)": ANY,
    "F.softmin(x, axis=1, temperature=2)": ANY,
    "F.broadcast_sub(x, F.mean(x, axis=1, keepdims=True))": ANY,
    "F.broadcast_div(x, F.norm(x, axis=-1, keepdims=True) + 1)": ANY,
    "F.broadcast_add(x, F.max(x, axis=-1, keepdims=True))": ANY,
    "F.broadcast_mul(x, F.sum(F.slice_axis(x, axis=1, begin=0, end=1), axis=1, keepdims=True))": ANY,
    "F.elemwise_add(x, F.BlockGrad(x * 3))": ANY,
    "F.identity(x) + F.zeros_like(x) - F.ones_like(x)": ANY,
    "F.add_n(x, x * x, F.sin(x))": ANY,
    "F.L2Normalization(x, mode='instance')": ANY,
    "F.L2Normalization(x, mode='channel')": (2, 3, 4),
    "F.reverse(x, axis=1)": ANY,
    "F.smooth_l1(x, scalar=1.5)": ANY,
    "F.hard_sigmoid(x) * F.softsign(x)": ANY,
    "F.erf(x) + F.cbrt(x * x + 1)": ANY,
    "F.LRN(x, nsize=3, alpha=0.1)": (3,),
    "F.UpSampling(F.Pooling(x, kernel=(1, 1), pool_type='sum'), scale=1, sample_type='nearest')": (3,),
    "F.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type='lp', p_value=2)": (3,),
    "F.swapaxes(F.swapaxes(x, 1, 2) * 2, 1, 2)": (2, 3, 4),
    "F.batch_dot(F.softmax(F.batch_dot(x, x, transpose_b=True)), x)": (2,),
    "F.contrib.div_sqrt_dim(x)": ANY,
    "F.broadcast_like(F.mean(x, axis=-1, keepdims=True), x) * x": ANY,
    "F.slice_like(F.concat(x, x, dim=1), x, axes=(1,))": ANY,
    "F.reshape_like(F.flatten(x), x)": ANY,
    "F.SequenceReverse(F.swapaxes(x, 0, 1)).swapaxes(0, 1)": (2,),
    "F.take(x, F.contrib.arange_like(x, axis=1), axis=1)": ANY,
    "F.stack(x, -x, axis=0).sum(axis=0) + x": ANY,
}  # fmt: skip

# Those whose gradient is nothing but rounding where a row has one number.
DIVIDING = ("L2Normalization", "norm")

# Expressions that change it.
OTHER = {
    "F.concat(x, F.sin(x), dim=1)": ANY,
    "F.mean(x, axis=-1)": (2, 3, 4),
    "F.max(x, axis=1)": (2, 3, 4),
    "F.sum(x, axis=(1, 2))": (3, 4),
    "F.expand_dims(x, axis=1)": (1, 2, 3),
    "F.reshape(x, shape=(0, -1))": (2, 3, 4),
    "F.reshape(x, shape=(0, -3, 0))": (3,),
    "F.reshape(x, shape=(0, -1, 1))": (1, 2),
    "F.transpose(x, axes=(0, 2, 1))": (2,),
    "F.transpose(x, axes=(0, 3, 1, 2))": (3,),
    "F.slice_axis(x, axis=1, begin=0, end=1)": ANY,
    "F.slice(x, begin=(None, 0), end=(None, 1))": ANY,
    "F.tile(x, reps=(1, 2))": (1,),
    "F.repeat(x, repeats=2, axis=1)": ANY,
    "F.Pad(x, mode='edge', pad_width=(0, 0, 0, 0, 1, 1, 1, 0))": (3,),
    "F.Pad(x, mode='constant', constant_value=0.5, pad_width=(0, 0, 0, 0, 0, 1, 1, 1))": (3,),
    "F.UpSampling(x, scale=2, sample_type='nearest')": (3,),
    "F.contrib.BilinearResize2D(x, height=4, width=3)": (3,),
    "F.contrib.AdaptiveAvgPooling2D(x, output_size=2)": (3,),
    "F.stack(x, x * x, axis=1)": (1, 2),
    "F.SequenceLast(F.swapaxes(x, 0, 1))": (2, 3),
    "F.broadcast_mul(F.expand_dims(x, 1), F.expand_dims(x, 2))": (1,),
    "F.batch_dot(x, x, transpose_a=True)": (2,),
    "F.sort(x, axis=-1)": ANY,
    "F.topk(x, axis=-1, k=1, ret_typ='value')": ANY,
    "F.space_to_depth(F.UpSampling(x, scale=2, sample_type='nearest'), 2)": (3,),
    "F.im2col(x, kernel=(1, 1))": (3,),
}  # fmt: skip


@drawn("nn.HybridLambda")
def expression(d, shape, keep):
    rank = len(shape)
    grows = not keep and prod(shape) <= LARGE and d.often(0.5)
    fitting = [text for text, ranks in (OTHER if grows else SAME).items() if rank in ranks]
    if 1 in shape:
        fitting = [text for text in fitting if not any(each in text for each in DIVIDING)]
    if d.often(0.1):
        return layer("nn.HybridLambda", function=d.choice(["tanh", "relu", "sin", "square"]))
    return layer("nn.HybridLambda", function=Code(f"lambda F, x: {d.choice(fitting)}"))
