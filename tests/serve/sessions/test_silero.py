"""A real voice activity detector, served by sessions, equals onnxruntime (`make models` fetches it)."""

import asyncio

import numpy as np
import pytest

from benchmarks.silero import CHUNK, STATES, Detector, Runtime, speech
from benchmarks.text_models import SILERO
from flowmx.contrib import onnx as mxonnx
from flowmx.serve import Predictor, Repository

pytestmark = pytest.mark.skipif(not SILERO.exists(), reason=f"{SILERO.name} is missing: make models")


async def test_sessions_in_shared_batches_equal_separate_runs_of_onnxruntime():
    sounds = [speech(20, seed) for seed in range(12)]
    runtimes = [Runtime() for _ in sounds]
    expected = [
        [runtime.run(chunk[None])[0] for chunk in sound] for runtime, sound in zip(runtimes, sounds, strict=True)
    ]

    async def client(place):
        async with predictor.session() as session:
            if place % 2:
                return [y async for y in session.stream(sounds[place])]
            return [await session(chunk) for chunk in sounds[place]]

    async with Predictor(Detector(), (CHUNK,), states=STATES, sizes=(1, 4, 16)) as predictor:
        actual = await asyncio.gather(*map(client, range(len(sounds))))
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert np.ptp(actual) > 0.01


@pytest.mark.parametrize(("rate", "samples"), [(16000, 576), (8000, 288)])
async def test_the_file_itself_is_a_model_with_a_state(rate, samples):
    states, shape = {"state": "stateN"}, {"input": (samples,)}
    chunks = speech(20, 3).reshape(-1)[: 5 * samples].reshape(5, samples)
    session, state = Runtime()._session, np.zeros((2, 1, 128), np.float32)
    async with Predictor(SILERO, shape, states=states, constants={"sr": rate}, sizes=(2,)) as predictor:
        assert predictor.describe()["states"] == [{"name": "state", "shape": [2, 128], "dtype": "float32"}]
        async with predictor.session() as s:
            for chunk in chunks:
                feeds = {"input": chunk[None], "state": state, "sr": np.array(rate)}
                y, state = session.run(None, feeds)
                np.testing.assert_allclose(await s(chunk), y[0], atol=1e-5)


def test_the_names_of_the_file_tell_the_state():
    predictor = Predictor(SILERO, {"input": (576,)}, states=True, constants={"sr": 16000}, sizes=(1,))
    assert [spec["name"] for spec in predictor.describe()["states"]] == ["state"]
    assert [spec.name for spec in predictor.inputs.specs] == ["input"]


def test_the_whole_file_opens_as_a_block_whose_rate_is_an_input():
    block = mxonnx.import_to_gluon(SILERO)
    assert list(block._dtypes) == ["input", "state", "sr"]


async def test_a_repository_serves_the_file_with_its_states(tmp_path):
    folder = tmp_path / "vad"
    folder.mkdir()
    (folder / "vad.onnx").symlink_to(SILERO)
    (folder / "model.toml").write_text(
        'shape = {input = [576]}\nsizes = [1]\nstates = {state = "stateN"}\nconstants = {sr = 16000}\n'
        "sessions = {sessions = 2}\n"
    )
    repository = Repository(tmp_path)
    await repository.load("vad")
    predictor = repository.models.find("vad")
    async with predictor.session() as session:
        assert (await session(np.zeros(576))).shape == (1,)
    assert predictor.describe()["sessions"]["sessions"] == 2
    await repository.close()
