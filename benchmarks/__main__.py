"""``python -m benchmarks [name ...] [--rounds N]``: run the benchmarks and print flowmx's and its peers' figures.

The peers are installed in separate environments, in the folder that PEERS names: ``mxnet/bin/python`` with MXNet
1.9.1, ``torch/bin/python`` with PyTorch. A peer that is not installed is skipped.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import adapters as low_rank
from benchmarks import figure7, figure8, onnx_files, sim_scaling, slices, text_parity, turns
from benchmarks import first_calls as firsts
from benchmarks import gpu as gpus
from benchmarks import half as halves
from benchmarks import hostile as attacks
from benchmarks import images as pictures
from benchmarks import kvstore as stores
from benchmarks import loader as loaders
from benchmarks import packed_products as quantized_weights
from benchmarks import prediction as predictions
from benchmarks import profiling as profilers
from benchmarks import quantized as bytewise
from benchmarks import recordio as records
from benchmarks import serving as services
from benchmarks import sessions as streams
from benchmarks import text_generation as texts


def engine(rounds: int) -> None:
    """Measure the cost of an operation beyond its arithmetic, on arrays of 16 floats."""
    turns.report(
        "Engine cost (microseconds an operation, arrays of 16 floats)",
        turns.compare("engine", ["mxnet"], rounds),
        {
            "chain_us": [("mxnet", 0.35)],
            "independent_us": [("mxnet", 0.35)],
            "push_and_wait_us": [("mxnet", 0.6)],
            "push_and_await_us": [("push_and_wait_us", 1.5)],
        },
    )


def packed(rounds: int) -> None:
    """Products with quantized weights: time, and the tokens per second that they allow."""
    quantized_weights.report(rounds)


def generation(rounds: int) -> None:
    """Text generation: tokens per second of SmolLM2-135M, compared with llama.cpp, and the event loop's lag."""
    texts.report(rounds)


def adapters(rounds: int) -> None:
    """Decode steps whose rows have adapters, compared with steps without."""
    low_rank.report(rounds)


def parity(rounds: int) -> None:
    """Greedy tokens of SmolLM2-135M, compared with llama.cpp's."""
    text_parity.report()


def sessions(rounds: int) -> None:
    """1,000 sessions of a voice activity detector, compared with onnxruntime."""
    streams.report(min(rounds, 3))


def numpy_api(rounds: int) -> None:
    """Operators of mx.np compared with those of mx.nd, on small arrays."""
    figures = turns.compare("numpy_api", [], rounds, pick=min)
    figures["the bar"] = {name: 1.05 for name in figures["flowmx"] if name.endswith("ratio")}
    bars = {name: [("the bar", 1.0)] for name in figures["the bar"]}
    turns.report("mx.np (microseconds), and its ratio to mx.nd, on arrays of a few numbers", figures, bars)


def lenet(rounds: int) -> None:
    """A training step of a symbolic LeNet, 1x28x28, batch 64."""
    turns.report(
        "LeNet training step (milliseconds, batch 64)",
        turns.compare("lenet", ["mxnet"], rounds),
        {"step_ms": [("mxnet", 1.5)]},
    )


def lag(rounds: int) -> None:
    """The lag of an event loop while LeNet trains in the same process."""
    turns.report("Event loop during LeNet training (milliseconds of lag)", turns.compare("lag", [], rounds))


def loop_gaps(rounds: int) -> None:
    """Measure the longest gaps of event loops, asyncio's and uvloop's, while services and programs run on them."""
    del rounds  # the worker takes the least of several runs
    for kind in ("asyncio", "uvloop"):
        subprocess.run([sys.executable, Path(__file__).with_name("workers") / "loop_gaps.py", kind], check=True)


def runahead(rounds: int) -> None:
    """A million operations pushed without a wait."""
    del rounds
    turns.report("A million pushes without a wait", turns.compare("runahead", [], 1))


def networks(rounds: int) -> None:
    """Training steps and inference of the convnet-benchmarks networks and ResNet-18, batch 16, 224x224."""
    for name in ("alexnet", "googlenet", "resnet_18", "vgg_a"):
        turns.report(
            f"{name} (milliseconds, batch 16, 224x224)",
            turns.compare("convnets", ["mxnet", "torch"], rounds, [name]),
            {figure: [("mxnet", 0.9), ("torch", 1.05)] for figure in ("train_ms", "infer_ms")},
        )


def memory(rounds: int) -> None:
    """Megabytes planned for internal values at batch 64, in training and in prediction."""
    del rounds  # nothing is timed
    for name in figure7.NETWORKS:
        turns.report(
            f"{name} (planned megabytes, batch 64)",
            turns.compare("memory", ["mxnet"], 1, [name]),
            {figure: [("mxnet", 1.0)] for figure in ("train_mb", "predict_mb")},
        )


def memory_strategies(rounds: int) -> None:
    """Figure 7 of the paper: planned memory under each strategy; writes docs/memory.md and its picture."""
    del rounds  # nothing is timed
    figures = figure7.measure()
    figure7.write(figures)
    for phase in figure7.PHASES:
        print(f"\n{phase}\n{figure7.table(figures, phase)}")
    print(f"\n{figure7.summary(figures)}")


def int8(rounds: int) -> None:
    """Predictions in int8, compared with float32, MXNet's int8 and onnxruntime's."""
    bytewise.report(3 * rounds)


def onnx(rounds: int) -> None:
    """Real ONNX files (``make onnx-models`` fetches them), compared with onnxruntime and OpenVINO."""
    onnx_files.compare(min(rounds, 3))


def sliced(rounds: int) -> None:
    """Predictions in slices of the batch, compared with the whole batch at once."""
    figures = slices.measure(rounds)
    slices.write(figures)
    print(f"{slices.table(figures)}\n\n{slices.summary(figures)}")


def scaling(rounds: int) -> None:
    """Figure 8 of the paper: simulated training on many machines, compared with real hosts; writes docs/scaling.md."""
    del rounds  # each kind runs once
    figure8.run()


def scaling_measured(rounds: int) -> None:
    """Measure the costs on this machine from which figure 8 is simulated."""
    del rounds
    profile = figure8.measure()
    print(f"{profile.about}: {profile.seconds:.3f} s a step, {profile.nbytes / 1e6:.1f} MB of parameters")


def sim_scaled(rounds: int) -> None:
    """ResNet-50 on 1 to 8 simulated GPUs, with and without buckets and overlap; writes docs/simulation.md."""
    del rounds  # virtual time is the same each time
    sim_scaling.run()


def resident(rounds: int) -> None:
    """Resident megabytes at the peak, compared with the plan and the bound arrays, at batch 16."""
    for name in figure7.NETWORKS:
        for phase in ("train", "predict"):
            figures = turns.compare("resident", [], rounds, [name, phase], min)
            turns.report(f"{name}, {phase} (resident megabytes, batch 16)", figures)


def planning(rounds: int) -> None:
    """Processor seconds of binding graphs of 10,000 and 40,000 nodes for training."""
    bars = {f"{shape}_{nodes}_s": [("the bar", 1.0)] for shape in PLANNED for nodes in PLANNING_SECONDS}
    figures = turns.compare("planning", [], rounds, pick=min)
    figures["the bar"] = {f"{shape}_{nodes}_s": limit for shape in PLANNED for nodes, limit in PLANNING_SECONDS.items()}
    turns.report("Binding big graphs (processor seconds; memory relative to the lower bound)", figures, bars)


PLANNED = ("chain", "residual", "wide", "lstm")
PLANNING_SECONDS = {10_000: 3.0, 40_000: 12.0}


def hybrid(rounds: int) -> None:
    """Gluon networks at batch 1, hybridized and imperative."""
    for name in ("cifar_resnet_18", "resnet_18", "lstm_128", "lstm_512", "alexnet"):
        turns.report(
            f"{name} (milliseconds, batch 1)",
            turns.compare("hybrid", ["mxnet", "torch"], rounds, [name], min),
            {
                "infer_ms": [("imperative_infer_ms", 0.5), ("mxnet", 1.0), ("torch", 1.0)],
                "train_ms": [("imperative_train_ms", 0.5)],
            },
        )


def gluon(rounds: int) -> None:
    """Gluon training steps with their updates: ResNet-18 and an LSTM hybridized, an MLP and LSTM cells imperative."""
    for name in ("resnet", "lstm", "mlp", "cells"):
        turns.report(
            f"{name} (milliseconds a Gluon training step)",
            turns.compare("gluon_steps", ["mxnet", "torch"], rounds, [name], min),
            {"train_ms": [("mxnet", 0.9), ("torch", 1.05)]},
        )


def small(rounds: int) -> None:
    """Small imperative training steps, operator by operator, with their updates."""
    steps("small_steps", SMALL, rounds)


def steps(worker: str, names: Sequence[str], rounds: int) -> None:
    """Measure the training steps of a worker by name."""
    ratios = []
    for name in names:
        figures = turns.compare(worker, ["mxnet", "torch"], rounds, [name], min)
        turns.report(
            f"{name} (milliseconds an imperative step)", figures, {"step_ms": [("mxnet", 0.8), ("torch", 1.5)]}
        )
        if "torch" in figures:
            ratios.append(figures["flowmx"]["step_ms"] / figures["torch"]["step_ms"])
    if ratios:
        print(f"\ngeometric mean of the ratios to torch's time: {statistics.geometric_mean(ratios):.2f}, at most 1.2")


def small_operators(rounds: int) -> None:
    """Operators of 1e3 and 1e4 elements, forward and with their gradients (+); long tapes with the collector on."""
    figures = turns.compare("small_operators", ["torch"], rounds, pick=min)
    turns.report("Operators on small arrays (microseconds; + with the gradient)", figures)
    if "torch" in figures:
        flowmx, peer = figures["flowmx"], figures["torch"]
        for ending in (" 1000", " + 1000", " 10000", " + 10000", ""):
            ratios = [
                value / peer[name]
                for name, value in flowmx.items()
                if name.endswith(ending) and ("+" in name) == ("+" in ending or (not ending and "+" in name))
            ]
            mean = statistics.geometric_mean(ratios)
            print(f"  geometric mean of the ratios to torch's time,{ending or ' all, at seconds 1.5'}: {mean:.2f}")
    tapes = turns.compare("long_tape", ["torch"], rounds, pick=min)
    turns.report(
        "An operator and its gradient on a tape (microseconds)",
        tapes,
        {"operators_100000": [("operators_100", 1.3)]},
    )


def other_small(rounds: int) -> None:
    """Five further small imperative steps."""
    steps("other_steps", OTHERS, rounds)


OTHERS = ("vae", "dqn", "sequence_convnet", "by_hand", "siamese")
SMALL = ("mlp", "gru", "transformer", "tiny", "rows", "policy", "branches", "seq2seq", "convnet", "embedding")


def shapes(rounds: int) -> None:
    """Megabytes that a thousand random shapes through one hybridized network take, compared with the largest alone."""
    del rounds  # nothing is timed
    for phase in ("predict", "train"):
        figures = {
            "flowmx": turns.run("shapes", "flowmx", [phase, "many"]),
            "largest": turns.run("shapes", "flowmx", [phase, "largest"]),
        }
        turns.report(f"1,000 shapes, {phase} (resident megabytes)", figures, {"grown_mb": [("largest", 1.3)]})


def recompute(rounds: int) -> None:
    """Memory and time of training steps with recomputation, in a 128-layer residual network and others."""
    for kind, (layers, part) in RECOMPUTED.items():
        turns.report(
            f"{kind}, {layers} layers, in {part} % of its memory (megabytes planned, milliseconds a training step)",
            turns.compare("recompute", [], rounds, [kind, str(layers), str(part)], min),
            {
                "recomputed_mb": [("plain_mb", part / 100)],
                "recomputed_ms": [("plain_ms", 1 / 0.75)] if kind == "residual" else [],
            },
        )


RECOMPUTED = {"residual": (128, 35), "plain": (64, 35), "dense": (36, 40), "lstm": (100, 50)}


def language(rounds: int) -> None:
    """A training step of a two-layer LSTM language model: hidden 512, 35 steps, batch 32, 10,000 words."""
    turns.report(
        "LSTM language model (milliseconds a training step)",
        turns.compare("language", ["mxnet", "torch"], rounds),
        {"train_ms": [("mxnet", 0.9), ("torch", 1.1)]},
    )


def transformer(rounds: int) -> None:
    """A training step of a pre-norm Transformer block: width 512, 8 heads, 128 tokens, batch 8."""
    turns.report(
        "Transformer block (milliseconds a training step)",
        turns.compare("transformer", ["mxnet", "torch"], rounds),
        {"train_ms": [("torch", 1.1)]},
    )


def transformers(rounds: int) -> None:
    """Training steps of BERT, GPT-2 and ViT, compared with Hugging Face's models in PyTorch.

    Measure with CPU_TIME=1 and OMP_NUM_THREADS=1 under ``taskset`` where other work runs.
    """
    for network in ("bert", "gpt2", "vit"):
        for dropout in ("0", "0.1"):
            turns.report(
                f"{network}, dropout {dropout} (milliseconds a training step)",
                turns.compare("transformers_training", ["torch"], min(rounds, 3), [network, dropout], min),
                {"step_ms": [("torch", 0.9)]},
            )


def operators(rounds: int) -> None:
    """Single operators, forward and with their gradients (+), on 1e3 to 1e7 elements; Adam on 25 million."""
    figures = turns.compare("operators", ["torch"], rounds, pick=min)
    bars = {name: [("torch", 1.0)] for name in figures["flowmx"] if float(name.split()[-1]) >= 1e6}
    turns.report("Operators (microseconds; + with the gradient)", figures, bars)


def half(rounds: int) -> None:
    """Networks in bfloat16 on the CPU, compared with float32 and PyTorch's bfloat16."""
    halves.compare(min(rounds, 3))


def chain(rounds: int) -> None:
    """Chains of ten elementwise operators on ten million elements, compared with one pass over the same memory."""
    one, three = ("read and write, 1", 1.5), ("read and write, 3", 1.5)
    bars = {name: [one] for name in ("arithmetic", "one function", "three functions")}
    bars |= {name: [three] for name in ("three inputs", "three inputs, a function")}
    figures = turns.compare("chain", ["mxnet", "torch"], rounds, pick=min)
    turns.report("Chains of ten elementwise operators (milliseconds, 1e7 elements)", figures, bars)


def detection(rounds: int) -> None:
    """Operators of detection: non-maximum suppression, box predictions, averages over regions."""
    figures = turns.compare("detection", ["mxnet"], min(rounds, 3), pick=min)
    turns.report("Detection (milliseconds)", figures, {name: [("mxnet", 1.0)] for name in figures["flowmx"]})


def attention(rounds: int) -> None:
    """Attention by length, hybridized, compared with PyTorch's scaled_dot_product_attention."""
    figures = turns.compare("attention", ["torch"], min(rounds, 3), pick=min)
    bars = {name: [("torch", 1.1)] for name in figures["flowmx"] if name.startswith("step")}
    turns.report("Attention, 8 heads of 64 (milliseconds)", figures, bars)


def sparse(rounds: int) -> None:
    """Sparse arrays: products, a lazy step of an embedding, an epoch of a factorization machine."""
    figures = turns.compare("sparse", ["mxnet", "scipy"], min(rounds, 3), pick=min)
    bars = {name: [("mxnet", 0.8), ("scipy", 1.2)] for name in figures["flowmx"] if " x " in name}
    bars |= {name: [("mxnet", 0.8 if "step" in name else 0.7)] for name in figures["flowmx"] if " x " not in name}
    turns.report("Sparse arrays (milliseconds)", figures, bars)


def first_calls(rounds: int) -> None:
    """First calls of ten hybridized networks in fresh processes, with an empty and a warm cache; first operators."""
    firsts.compare(min(rounds, 3))
    firsts.first_operators(rounds)


def short_calls(rounds: int) -> None:
    """Predictions by small hybridized networks, whose time is mostly that of the call."""
    figures = turns.compare("short_calls", ["mxnet", "torch", "onnxruntime"], rounds, pick=min)
    turns.report(
        "Small networks (microseconds a prediction, by batch)", figures,
        {name: [("torch", 1.0), ("onnxruntime", 1.0)] for name in figures["flowmx"]},
    )  # fmt: skip


def importing(rounds: int) -> None:
    """The import time in a fresh process."""
    turns.report("Import (seconds)", turns.compare("importing", ["mxnet", "torch"], rounds))


def prediction(rounds: int) -> None:
    """Image networks in float32 at batch 1 and 16, compared with onnxruntime, OpenVINO and PyTorch."""
    predictions.report(rounds)


def transport(rounds: int) -> None:
    """Two client processes send 25 arrays of 4 MB each to one service, and get as many back."""
    figures = turns.compare("transport", [], min(rounds, 3), pick=min)
    turns.report("Two clients, 100 MB each way (milliseconds; MB/s of both ways)", figures)


def kvstore(rounds: int) -> None:
    """Stores of two workers and a server, compared with MXNet's ps-lite and PyTorch's gloo, as jobs on loopback."""
    stores.compare(rounds)


def recordio(rounds: int) -> None:
    """A RecordIO file of a gigabyte, read in order and at random."""
    records.compare(rounds)


def images(rounds: int) -> None:
    """ImageRecordIter: JPEG photographs decoded, cropped, mirrored and normalized."""
    pictures.compare(rounds)


def loader(rounds: int) -> None:
    """DataLoader: rows in memory, small images augmented, JPEG photographs decoded and augmented."""
    loaders.compare(rounds)


def checkpoints(rounds: int) -> None:
    """500 MB of parameters written to disk and read back, in 4 arrays and in 400."""
    figures = turns.compare("checkpoints", ["torch"], rounds, pick=min)
    bars = {name: [("torch", 1.2)] for name in figures["flowmx"]}
    turns.report("500 MB of parameters: torch.save with fsync, torch.load (milliseconds)", figures, bars)


def profiling(rounds: int) -> None:
    """LeNet's training step under the profiler, and with and without the flight recorder."""
    profilers.compare(rounds)


def serving(rounds: int) -> None:
    """Services of ResNet-18 for 32x32 images, with 64 clients and with ten times as many."""
    services.compare(min(rounds, 3))


def hostile(rounds: int) -> None:
    """A service with 16 honest clients under hostile load, and under clients that never back off."""
    attacks.compare(min(rounds, 3))


def gpu(rounds: int) -> None:
    """Networks, a Transformer block, launches, copies and memory on a GPU, compared with PyTorch."""
    gpus.compare(min(rounds, 3))


BENCHMARKS = {
    function.__name__: function
    for function in (
        engine, numpy_api, lenet, lag, loop_gaps, runahead, networks, operators, chain, memory, recompute, resident,
        planning, language, transformer, transformers, hybrid, gluon, small, other_small, small_operators, shapes,
        detection, sparse, attention, first_calls, importing, short_calls,
        kvstore, checkpoints, recordio, images, loader, profiling, serving, hostile, gpu, half, int8, packed,
        generation, adapters, parity, sessions, onnx,
        prediction,
    )
}  # fmt: skip
PICTURES = {
    "figure7": memory_strategies, "slices": sliced, "figure8": scaling, "figure8_measure": scaling_measured,
    "sim_scaling": sim_scaled,
}  # fmt: skip
"""Measurements that write into the documentation; they run only when named."""


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS, *PICTURES], help="which (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system (default: %(default)s)")
    options = parser.parse_args()
    for name in options.names or BENCHMARKS:
        {**BENCHMARKS, **PICTURES}[name](options.rounds)


if __name__ == "__main__":
    main()
