"""Functions and classes of PyTorch's and Keras' modules, and their equivalents in flowmx, by flowmx's module."""

from __future__ import annotations

from collections.abc import Mapping

from flowmx.foreign_names.metrics import METRICS
from flowmx.foreign_names.objects import ENABLE_GRAD, NO_GRAD

__all__ = ["MODULES"]

_CROSS_ENTROPY = "mx.gluon.loss.SoftmaxCrossEntropyLoss()"
_L2 = "mx.gluon.loss.L2Loss(), which is half of it"
_LOSSES: Mapping[str, str] = {
    "BCELoss": "mx.gluon.loss.SigmoidBinaryCrossEntropyLoss(from_sigmoid=True)",
    "BCEWithLogitsLoss": "mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()",
    "BinaryCrossentropy": "mx.gluon.loss.SigmoidBinaryCrossEntropyLoss()", "CategoricalCrossentropy": _CROSS_ENTROPY,
    "CosineSimilarity": "mx.gluon.loss.CosineEmbeddingLoss()", "CrossEntropyLoss": _CROSS_ENTROPY,
    "L1": "mx.gluon.loss.L1Loss()", "MAE": "mx.gluon.loss.L1Loss()", "MSE": _L2, "MSELoss": _L2,
    "MarginRankingLoss": "mx.gluon.loss.HingeLoss()", "MeanAbsoluteError": "mx.gluon.loss.L1Loss()",
    "MeanSquaredError": _L2, "NLLLoss": "mx.gluon.loss.SoftmaxCrossEntropyLoss(from_logits=True)",
    "SmoothL1Loss": "mx.gluon.loss.HuberLoss()", "SparseCategoricalCrossentropy": _CROSS_ENTROPY,
    "TripletMarginLoss": "mx.gluon.loss.TripletLoss()", "cross_entropy": _CROSS_ENTROPY,
}  # fmt: skip
_OPERATORS = ("arange", "concat", "dot", "exp", "eye", "full", "linspace", "max", "mean", "norm", "ones", "ones_like",
              "relu", "reshape", "sigmoid", "softmax", "split", "stack", "sum", "transpose", "where", "zeros",
              "zeros_like")  # fmt: skip
_DTYPES = ("bfloat16", "float16", "float32", "float64", "int32", "int64", "int8", "uint8")
_OPTIMIZERS = "mx.gluon.Trainer(net.collect_params(), 'adam'); mx.optimizer has the classes"
_ESTIMATORS = "mx.gluon.contrib.estimator"

_LAYERS: Mapping[str, str] = {
    **_LOSSES, "AdaptiveAvgPool2d": "gluon.nn.GlobalAvgPool2D(), or mx.nd.contrib.AdaptiveAvgPooling2D(x, size)",
    "AdaptiveMaxPool2d": "gluon.nn.GlobalMaxPool2D()", "Add": "x + y", "AvgPool1d": "gluon.nn.AvgPool1D(size)",
    "AvgPool2d": "gluon.nn.AvgPool2D(size)", "BatchNorm1d": "gluon.nn.BatchNorm(), which finds the channels itself",
    "BatchNorm2d": "gluon.nn.BatchNorm(), which finds the channels itself",
    "BatchNormalization": "gluon.nn.BatchNorm()", "Bidirectional": "gluon.rnn.LSTM(size, bidirectional=True)",
    "Concatenate": "mx.nd.concat(x, y, dim=1)", "Conv1d": "gluon.nn.Conv1D(channels, kernel_size)",
    "Conv2d": "gluon.nn.Conv2D(channels, kernel_size), which finds the input channels itself",
    "Conv3d": "gluon.nn.Conv3D(channels, kernel_size)",
    "ConvTranspose2d": "gluon.nn.Conv2DTranspose(channels, kernel_size)",
    "DataParallel": "contexts: net.initialize(ctx=[mx.gpu(0), mx.gpu(1)]) and gluon.utils.split_and_load(x, contexts)",
    "Dropout2d": "gluon.nn.Dropout(rate, axes=(2, 3))", "GRU": "gluon.rnn.GRU(size)",
    "GlobalAveragePooling2D": "gluon.nn.GlobalAvgPool2D()", "GlobalMaxPooling2D": "gluon.nn.GlobalMaxPool2D()",
    "Hardswish": "x * mx.nd.clip(x / 6 + 0.5, 0, 1)", "Hardtanh": "mx.nd.clip(x, -1, 1)",
    "Identity": "gluon.contrib.nn.Identity()", "Input": "no layer: a block takes its shapes from the first call",
    "InputLayer": "no layer: a block takes its shapes from the first call",
    "InstanceNorm2d": "gluon.nn.InstanceNorm()", "L1Loss": "mx.gluon.loss.L1Loss()", "LSTM": "gluon.rnn.LSTM(size)",
    "LSTMCell": "gluon.rnn.LSTMCell(size)", "LayerNormalization": "gluon.nn.LayerNorm()",
    "Linear": "gluon.nn.Dense(units, flatten=False), which finds the input size itself",
    "LogSoftmax": "mx.nd.log_softmax(x)", "MaxPool2d": "gluon.nn.MaxPool2D(size)",
    "MaxPooling2D": "gluon.nn.MaxPool2D(size)", "Mish": "x * mx.nd.tanh(mx.nd.Activation(x, act_type='softrelu'))",
    "Module": "gluon.HybridBlock, or gluon.Block", "ModuleDict": "attributes of the block",
    "ModuleList": "gluon.nn.Sequential(), which is indexed and iterated over",
    "MultiheadAttention": "gluon.nn.MultiHeadAttention(units, heads)",
    "Parameter": "self.params.get(name, shape=shape) in the block's __init__",
    "ParameterList": "self.params.get(name, shape=shape) in the block's __init__",
    "PixelShuffle": "gluon.contrib.nn.PixelShuffle2D(factor)", "RNN": "gluon.rnn.RNN(size)",
    "ReLU": "gluon.nn.Activation('relu')", "ReLU6": "mx.nd.clip(x, 0, 6)",
    "ReflectionPad2d": "gluon.nn.ReflectionPad2D(padding)",
    "Reshape": "x.reshape(shape) in forward, or gluon.nn.HybridLambda", "Sigmoid": "gluon.nn.Activation('sigmoid')",
    "SimpleRNN": "gluon.rnn.RNN(size)", "Softmax": "mx.nd.softmax(x)",
    "Softplus": "gluon.nn.Activation('softrelu')", "SpatialDropout2D": "gluon.nn.Dropout(rate, axes=(2, 3))",
    "SyncBatchNorm": "gluon.contrib.nn.SyncBatchNorm()", "Tanh": "gluon.nn.Activation('tanh')",
    "TimeDistributed": "gluon.nn.Dense(units, flatten=False)",
    "Transformer": "gluon.nn.TransformerEncoder and TransformerDecoder",
    "UpSampling2D": "mx.nd.UpSampling(x, scale=2, sample_type='nearest')",
    "Upsample": "mx.nd.UpSampling(x, scale=2, sample_type='nearest')",
    "ZeroPad2d": "mx.nd.pad(x, mode='constant', pad_width=(0, 0, 0, 0, 1, 1, 1, 1))",
    "functional": "mx.nd", "init": "mx.init", "parallel": "gluon.utils.split_and_load(x, contexts)",
    "utils": "mx.gluon.utils",
}  # fmt: skip

_FUNCTIONS: Mapping[str, str] = {
    "Tensor": "mx.nd.NDArray", "Variable": "mx.nd.array(values), and x.attach_grad()",
    "adaptive_avg_pool2d": "mx.nd.contrib.AdaptiveAvgPooling2D(x, size)", "argwhere": "mx.np.argwhere",
    "as_tensor": "mx.nd.array(values)", "avg_pool2d": "mx.nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type='avg')",
    "batch_norm": "mx.nd.BatchNorm", "bmm": "mx.nd.batch_dot(x, y)", "cat": "mx.nd.concat(x, y, dim=0)",
    "chunk": "mx.nd.split(x, num_outputs, axis)", "clamp": "mx.nd.clip(x, low, high)",
    "constant": "mx.nd.array(values)", "conv2d": "mx.nd.Convolution",
    "cross_entropy": _CROSS_ENTROPY, "dense": "mx.nd.FullyConnected", "device": "mx.gpu(0) or mx.cpu()",
    "dropout": "mx.nd.Dropout(x, p)", "einsum": "mx.np.einsum", "embedding": "mx.nd.Embedding",
    "enable_grad": ENABLE_GRAD, "expand_as": "mx.nd.broadcast_like(x, y)",
    "from_torch": "mx.nd.from_dlpack(tensor)", "functional": "mx.nd",
    "gather": "mx.nd.pick(x, index, axis), or mx.nd.gather_nd", "gelu": "mx.nd.LeakyReLU(x, act_type='gelu')",
    "hstack": "mx.nd.concat(x, y, dim=1)",
    "interpolate": "mx.nd.contrib.BilinearResize2D, or mx.nd.UpSampling",
    "isfinite": "mx.nd.contrib.isfinite(x)", "isin": "mx.np.isin", "layer_norm": "mx.nd.LayerNorm",
    "leaky_relu": "mx.nd.LeakyReLU(x)", "linear": "mx.nd.FullyConnected",
    "logsumexp": "mx.nd.log(mx.nd.exp(x).sum(axis))",
    "masked_fill": "mx.nd.where(mask, value, x)", "matmul": "mx.nd.dot(x, y), or mx.nd.batch_dot(x, y)",
    "max_pool2d": "mx.nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type='max')", "mm": "mx.nd.dot(x, y)",
    "mse_loss": _L2, "multinomial": "mx.nd.random.multinomial(probabilities)",
    "nll_loss": "mx.gluon.loss.SoftmaxCrossEntropyLoss(from_logits=True)", "no_grad": NO_GRAD,
    "nonzero": "mx.np.nonzero", "normalize": "mx.nd.L2Normalization(x)", "permute": "mx.nd.transpose(x, axes)",
    "rand": "mx.nd.random.uniform(shape=shape)", "randint": "mx.nd.random.randint(low, high, shape)",
    "randn": "mx.nd.random.normal(shape=shape)", "randperm": "mx.nd.random.shuffle(mx.nd.arange(n))",
    "reduce_max": "mx.nd.max(x, axis)", "reduce_mean": "mx.nd.mean(x, axis)", "reduce_sum": "mx.nd.sum(x, axis)",
    "relu6": "mx.nd.clip(x, 0, 6)", "repeat_interleave": "mx.nd.repeat(x, repeats, axis)",
    "scatter": "mx.nd.scatter_nd", "smooth_l1_loss": "mx.gluon.loss.HuberLoss()",
    "softplus": "mx.nd.Activation(x, act_type='softrelu')", "std": "mx.np.std", "tensor": "mx.nd.array(values)",
    "tril": "mx.np.tril", "triu": "mx.np.triu", "unique": "mx.np.unique", "unsqueeze": "mx.nd.expand_dims(x, axis)",
    "upsample": "mx.nd.UpSampling", "var": "mx.np.var", "view": "mx.nd.reshape(x, shape)",
    "vstack": "mx.nd.concat(x, y, dim=0)", **{name: f"the name {name!r}" for name in _DTYPES},
}  # fmt: skip

_FLOWMX: Mapping[str, str] = {
    **_FUNCTIONS, **{name: f"mx.nd.{name}" for name in _OPERATORS},
    "Adam": _OPTIMIZERS, "DataLoader": "mx.gluon.data.DataLoader", "Dataset": "mx.gluon.data.Dataset",
    "Dense": "mx.gluon.nn.Dense", "Device": "mx.gpu(0) or mx.cpu()",
    "GradientTape": "mx.autograd.record(), then loss.backward()", "Linear": "mx.gluon.nn.Dense",
    "Module": "mx.mod.Module, or mx.gluon.Block", "ModuleList": "mx.gluon.nn.Sequential()",
    "Parameter": "mx.gluon.Parameter, or self.params.get(name, shape=shape) in a block",
    "ReLU": "mx.gluon.nn.Activation('relu')", "SGD": _OPTIMIZERS, "Sequential": "mx.gluon.nn.Sequential()",
    "activations": "mx.gluon.nn.Activation(name)", "add": "x + y", "applications": "mx.gluon.model_zoo.vision",
    "array": "mx.nd.array(values)", "autocast": "mx.amp.init()", "backends": "mx.runtime.Features()",
    "callbacks": "mx.callback, or mx.gluon.contrib.estimator", "compile": "net.hybridize()",
    "cuda": "mx.gpu(0) and mx.num_gpus()", "datasets": "mx.gluon.data.vision",
    "default_device": "mx.current_context()", "distributed": "mx.kv.create('dist_sync'), and flowmx launch",
    "dtype": "the dtype's name, such as 'float32'", "from_dlpack": "mx.nd.from_dlpack(tensor)",
    "from_numpy": "mx.nd.array(values)", "grad": "mx.autograd.grad, or loss.backward() and x.grad",
    "gradient": "mx.autograd.grad", "inference_mode": NO_GRAD, "initializers": "mx.init",
    "is_grad_enabled": "mx.autograd.is_recording()", "is_tensor": "isinstance(x, mx.nd.NDArray)",
    "jit": "net.hybridize()", "keras": "mx.gluon", "layers": "mx.gluon.nn", "linalg": "mx.nd.linalg, or mx.np.linalg",
    "load": "mx.nd.load(file), or net.load_parameters(file)", "losses": "mx.gluon.loss",
    "manual_seed": "mx.random.seed(seed)", "metrics": "mx.metric", "models": "mx.gluon.model_zoo, or mx.gluon.nn",
    "nn": "mx.gluon.nn", "optim": _OPTIMIZERS, "optimizers": _OPTIMIZERS,
    "pmap": "contexts: gluon.utils.split_and_load(x, contexts)", "preprocessing": "mx.image, or mx.gluon.data",
    "quantization": "mx.contrib.quantization", "save": "mx.nd.save(file, arrays), or net.save_parameters(file)",
    "script": "net.hybridize()", "seed": "mx.random.seed(seed)", "set_default_device": "with mx.gpu(0): ...",
    "set_default_dtype": "dtype= of the calls, or net.cast('float16')",
    "set_grad_enabled": "mx.autograd.set_recording", "set_num_threads": "FLOWMX_CPU_KERNEL_NTHREADS",
    "sparse": "mx.nd.sparse", "stop_gradient": "mx.nd.stop_gradient(x), or x.detach()", "summary": "net.summary(x)",
    "text": "mx.generation, or mx.contrib.text for vocabularies", "tf": "mx.nd",
    "train": "mx.gluon.Trainer", "transforms": "mx.gluon.data.vision.transforms",
    "utils": "mx.gluon.utils", "value_and_grad": "mx.autograd.record() and loss.backward()",
    "variable": "mx.nd.array(values), and x.attach_grad()", "vmap": "batched operators, such as mx.nd.batch_dot",
}  # fmt: skip

_GLUON: Mapping[str, str] = {
    **{name: f"mx.gluon.nn.{name}" for name in ("Conv2D", "Dense", "Dropout", "HybridSequential", "Sequential")},
    **{name: f"mx.gluon.rnn.{name}" for name in ("GRU", "LSTM", "RNN")}, "Adam": _OPTIMIZERS,
    "DataLoader": "mx.gluon.data.DataLoader", "Dataset": "mx.gluon.data.Dataset",
    "EarlyStopping": f"{_ESTIMATORS}.EarlyStoppingHandler", "Estimator": f"{_ESTIMATORS}.Estimator",
    "Linear": "mx.gluon.nn.Dense", "ModelCheckpoint": f"{_ESTIMATORS}.CheckpointHandler", "Module": "mx.gluon.Block",
    "SGD": _OPTIMIZERS, "datasets": "mx.gluon.data.vision", "functional": "mx.nd", "init": "mx.init",
    "layers": "mx.gluon.nn", "losses": "mx.gluon.loss", "lr_scheduler": "mx.lr_scheduler", "metrics": "mx.metric",
    "models": "mx.gluon.model_zoo", "optim": _OPTIMIZERS, "transforms": "mx.gluon.data.vision.transforms",
}  # fmt: skip

_TRANSFORMS: Mapping[str, str] = {
    "AutoAugment": "RandAugment()", "ColorJitter": "RandomColorJitter(brightness, contrast, saturation, hue)",
    "ConvertImageDtype": "Cast(dtype), or ToTensor()", "Grayscale": "RandomGray(1.0)",
    "Lambda": "mx.gluon.nn.HybridLambda(function)", "PILToTensor": "ToTensor()",
    "Pad": "mx.image.copyMakeBorder(x, top, bottom, left, right)", "RandomGrayscale": "RandomGray(p)",
    "RandomHorizontalFlip": "RandomFlipLeftRight()", "RandomVerticalFlip": "RandomFlipTopBottom()",
    "Scale": "Resize(size)", "ToPILImage": "PIL.Image.fromarray(x.asnumpy())", "TrivialAugmentWide": "RandAugment()",
}  # fmt: skip

_GENERATE = "mx.generation.load(file), then await generator(prompt)"
_CALLBACKS = {
    "EarlyStopping": f"{_ESTIMATORS}.EarlyStoppingHandler(monitor, patience=3), with an Estimator",
    "LearningRateScheduler": "mx.lr_scheduler",
    "ModelCheckpoint": "mx.callback.do_checkpoint(prefix)",
    "ReduceLROnPlateau": "mx.lr_scheduler.ReduceLROnPlateau()",
    "TensorBoard": "mx.contrib.tensorboard.LogMetricsCallback",
}

MODULES: Mapping[str, Mapping[str, str]] = {
    "flowmx": _FLOWMX,
    "flowmx.amp": {
        "GradScaler": "mx.amp.init_trainer(trainer), and mx.amp.scale_loss(loss, trainer)",
        "autocast": "mx.amp.init()",
    },
    "flowmx.autograd": {
        "set_detect_anomaly": "mx.anomaly.stop_at_nan()",
        "GradientTape": ENABLE_GRAD, "Variable": "mx.nd.array(values), and x.attach_grad()", "enable_grad": ENABLE_GRAD,
        "gradcheck": "mx.test_utils.check_numeric_gradient", "inference_mode": NO_GRAD, "no_grad": NO_GRAD,
        "set_grad_enabled": "mx.autograd.set_recording", "stop_gradient": "mx.nd.stop_gradient(x), or x.detach()",
    },
    "flowmx.callback": _CALLBACKS,
    "flowmx.checkpoint": {
        "load": "mx.checkpoint.Run(net, trainer, folder), or net.load_parameters(file) for parameters",
        "save": "mx.checkpoint.Run(net, trainer, folder), or net.save_parameters(file) for parameters",
    },
    "flowmx.generation": {
        "AutoModelForCausalLM": "mx.generation.load(file)", "AutoTokenizer": "mx.generation.load(file).tokenizer",
        "LLM": _GENERATE, "SamplingParams": "the arguments of generator(prompt, temperature=0.7, ...)",
        "from_pretrained": "mx.generation.load(file)", "generate": _GENERATE, "pipeline": _GENERATE,
    },
    "flowmx.gluon": _GLUON,
    "flowmx.gluon.data": {
        "ChainDataset": "mx.gluon.data.SimpleDataset(list(a) + list(b))",
        "ConcatDataset": "mx.gluon.data.SimpleDataset(list(a) + list(b))",
        "DistributedSampler": "SplitSampler(length, num_parts, part_index)",
        "IterableDataset": "SimpleDataset(list(values)), or a mx.io.DataIter",
        "StackDataset": "mx.gluon.data.ArrayDataset(x, y)",
        "Subset": "dataset.take(n) or dataset.sample(s)", "SubsetRandomSampler": "FilterSampler, or random_split",
        "TensorDataset": "mx.gluon.data.ArrayDataset(x, y)", "default_collate": "mx.gluon.data.batchify.Stack()",
        "transforms": "mx.gluon.data.vision.transforms",
    },
    "flowmx.gluon.data.vision": {
        "ImageFolder": "ImageFolderDataset(folder)",
        "ImageNet": "ImageRecordDataset(file), with a file that flowmx im2rec writes",
    },
    "flowmx.gluon.data.vision.transforms": _TRANSFORMS,
    "flowmx.gluon.loss": _LOSSES,
    "flowmx.gluon.model_zoo.vision": {
        "ResNet50": "resnet50_v1()", "VGG16": "vgg16()", "googlenet": "inception_v3()",
        "mobilenet_v2": "mobilenet_v2_1_0()", "resnet18": "resnet18_v1()", "resnet34": "resnet34_v1()",
        "resnet50": "resnet50_v1()", "resnet101": "resnet101_v1()", "resnet152": "resnet152_v1()",
    },
    "flowmx.gluon.nn": _LAYERS,
    "flowmx.initializer": {
        "GlorotNormal": "Xavier(rnd_type='gaussian')", "GlorotUniform": "Xavier()", "HeNormal": "MSRAPrelu()",
        "HeUniform": "Xavier(factor_type='in', magnitude=6)", "Kaiming": "MSRAPrelu()",
        "KaimingNormal": "MSRAPrelu()", "KaimingUniform": "Xavier(factor_type='in', magnitude=6)",
        "RandomUniform": "Uniform(scale)", "TruncatedNormal": "Normal(sigma)",
        "XavierNormal": "Xavier(rnd_type='gaussian')",
        "XavierUniform": "Xavier()", "Zeros": "Zero()", "RandomNormal": "Normal(sigma)",
        "constant_": "Constant(value)", "kaiming_normal_": "MSRAPrelu()", "kaiming_uniform_": "Xavier(magnitude=2)",
        "normal_": "Normal(sigma)", "ones_": "One()", "trunc_normal_": "Normal(sigma)", "uniform_": "Uniform(scale)",
        "xavier_normal_": "Xavier(rnd_type='gaussian')", "xavier_uniform_": "Xavier()", "zeros_": "Zero()",
    },
    "flowmx.lr_scheduler": {
        "CosineAnnealingLR": "CosineScheduler(max_update)",
        "CosineAnnealingWarmRestarts": "CosineScheduler(max_update, warmup_steps=...)",
        "CosineDecay": "CosineScheduler(max_update)", "CyclicLR": "OneCycleScheduler(max_update)",
        "ExponentialDecay": "FactorScheduler(step, factor)", "ExponentialLR": "FactorScheduler(step, factor)",
        "LambdaLR": "a subclass of LRScheduler with rate()", "LinearLR": "PolyScheduler(max_update, pwr=1)",
        "MultiStepLR": "MultiFactorScheduler(steps, factor)", "OneCycleLR": "OneCycleScheduler(max_update)",
        "PiecewiseConstantDecay": "MultiFactorScheduler(steps, factor)", "PolynomialLR": "PolyScheduler(max_update)",
        "StepLR": "FactorScheduler(step, factor)",
    },
    "flowmx.metric": METRICS,
    "flowmx.ndarray": _FUNCTIONS,
    "flowmx.onnx": {
        "export": "mx.onnx.export_model(net, file, in_shapes=[shape])",
        "load": "mx.onnx.import_to_gluon(file), or import_model(file) for the symbol and parameters",
        "load_model": "mx.onnx.import_to_gluon(file), or import_model(file) for the symbol and parameters",
    },
    "flowmx.optimizer": {
        "Adadelta": "AdaDelta()", "Adagrad": "AdaGrad()", "Momentum": "SGD(momentum=0.9)", "NAdam": "Nadam()",
        "Nesterov": "NAG()", "RMSprop": "RMSProp()", "SparseAdam": "Adam(lazy_update=True)",
    },
    "flowmx.progress": {
        "Progbar": "mx.progress.track(iterable)", "tqdm": "mx.progress.track(iterable)",
        "trange": "mx.progress.track(range(n))",
    },
    "flowmx.random": {
        "get_rng_state": "mx.checkpoint, which saves the state of the random numbers",
        "manual_seed": "mx.random.seed(seed)",
        "PRNGKey": "mx.random.seed(seed)", "rand": "mx.random.uniform(shape=shape)", "set_seed": "mx.random.seed(seed)",
    },
    "flowmx.serve": {
        "FastAPI": "mx.serve.asgi(predictor), which FastAPI mounts; or await predictor(x) in its routes",
        "Generator": "mx.generation.Generator", "Model": "mx.serve.Predictor(model, shape)",
        "Server": "mx.serve.run(predictor), or flowmx serve", "create_app": "mx.serve.app(predictor)",
        "load": "mx.serve.Predictor(path, shape)", "serve": "mx.serve.run(predictor), or flowmx serve",
        "start": "mx.serve.run(predictor), or flowmx serve",
    },
    "flowmx.visualization": {"plot_model": "mx.viz.plot_network(symbol)", "summary": "net.summary(x)"},
}  # fmt: skip
"""By module, then by its attribute."""
