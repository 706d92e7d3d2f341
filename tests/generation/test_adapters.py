"""Requests with different adapters of one network in the same steps."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import Overloaded
from flowmx.generation import Generator, PagedDecoder, adapters, load
from flowmx.generation.step_batch import StepBatch
from flowmx.gluon import lora
from flowmx.gluon.model_zoo import from_pretrained
from flowmx.gluon.nn.packed import PackedDense
from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.serve import command
from tests.generation.test_generator import Scripted, numbers
from tests.generation.test_loading import folder  # noqa: F401 (a fixture)
from tests.serve.test_http import JSON, Client

MODEL = Path(__file__).parent.parent / "fixtures" / "huggingface" / "llama"
PEFT = Path(__file__).parent.parent / "fixtures" / "peft" / "llama"
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 10], [3]]


async def random_adapter(seed, rank=4, targets="attention|widen|narrow|output"):
    """Return the weights of an adapter, and a network that has it."""
    net = from_pretrained(MODEL)
    adapter = lora.attach(net, targets, rank=rank)
    mx.random.seed(seed)
    for parameter in adapter.parameters():
        parameter.set_data(mx.nd.random.normal(0, 0.4, shape=parameter.shape))
    await mx.nd.waitall_async()
    return adapter.weights(), net


async def texts(net):
    """Return the most probable tokens after each prompt, from the dense forward."""
    results = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(8):
            logits = await net(mx.nd.array([tokens], dtype="int32"))
            tokens.append(int(logits.asnumpy()[0, -1].argmax()))
        results.append(tokens[len(prompt) :])
    return results


async def answers(generator, *names):
    """Return the tokens for each prompt with each adapter, all requested at once."""
    requests = [
        generator(prompt, max_tokens=8, temperature=0, adapter=name) for name in names for prompt in PROMPTS
    ]  # fmt: skip
    results = [numbers(result.tokens) for result in await asyncio.gather(*requests)]
    return [results[index : index + 3] for index in range(0, len(results), 3)]


@pytest.mark.parametrize("pages", [200, 14])
@pytest.mark.parametrize("drafts", [0, 3])
async def test_each_request_has_the_tokens_of_its_adapter(pages, drafts):
    (one, one_net), (two, two_net) = (
        (await random_adapter(1)),
        (await random_adapter(2, rank=12, targets="widen|query")),
    )
    plain = from_pretrained(MODEL)
    expected = [await texts(plain), await texts(one_net), await texts(two_net)]
    decoder = PagedDecoder(plain, pages=pages, page_size=4)
    async with Generator(decoder, drafts=drafts, prefill_tokens=7) as generator:
        assert await answers(generator, None) == expected[:1]
        generator.add_adapter("one", one)
        assert await answers(generator, None, "one") == expected[:2]
        generator.add_adapter("two", two)  # of a higher rank
        for _ in range(2):  # the second time, prompts are in the cache
            assert await answers(generator, None, "one", "two") == expected
        assert generator.adapters == ["one", "two"]
        assert repr(generator) == "<Generator 'model' with the adapters one, two>"
        assert await texts(plain) == expected[0]


async def test_requests_without_an_adapter_are_bit_identical():
    async def logprobs(*adapters):
        async with Generator(PagedDecoder(from_pretrained(MODEL), pages=64, page_size=4)) as generator:
            for seed, name in enumerate(filter(None, adapters)):
                generator.add_adapter(name, (await random_adapter(seed))[0])
            requests = [
                generator(PROMPTS[0], max_tokens=6, temperature=0, logprobs=5, adapter=name) for name in adapters
            ]  # fmt: skip
            return [result.tokens for result in await asyncio.gather(*requests)]

    alone = await logprobs(None, None, None)
    mixed = await logprobs(None, "one", "two")
    assert mixed[0] == alone[0]
    assert mixed[1] != alone[1]
    assert mixed[2] not in (alone[2], mixed[1])


async def test_after_a_warm_up_no_step_with_an_adapter_compiles():
    decoder, pushed = PagedDecoder(from_pretrained(MODEL), pages=64, page_size=4), []
    step = decoder.step
    decoder.step = lambda batch: (pushed.append(decoder.is_new(batch)), step(batch))[1]
    async with Generator(decoder, max_sequences=4, prefill_tokens=12) as generator:
        generator.add_adapter("one", (await random_adapter(1))[0])
        await generator.warm_up()
        await answers(generator, None, "one")
        assert pushed
        assert not any(pushed)
        pushed.clear()
        generator.add_adapter("two", (await random_adapter(2))[0])  # the first step with it writes the larger table
        await generator([1, 2], max_tokens=1, adapter="two")
        generator.remove_adapter("two")
        generator.add_adapter("three", (await random_adapter(3))[0])  # the table has room
        await generator([1, 2], max_tokens=3, adapter="three")
        assert pushed[:2] == [True, True]
        assert pushed[-1] is False


async def step_logits(decoder, slots):
    """Return the logits after one token of a sequence with an adapter."""
    zero, table = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    return (await decoder.step(StepBatch(zero, zero, zero, zero, table, zero, slots))).asnumpy()


async def test_an_adapter_that_is_added_while_another_is_written_waits_for_the_next_step(monkeypatch):
    one, two = (await random_adapter(1))[0], (await random_adapter(2, rank=12))[0]
    decoder, added = PagedDecoder(from_pretrained(MODEL), pages=8, page_size=4), []

    def add_and_replace(*arguments):
        if not added:
            added.append(decoder.add_adapter(two))  # the table grows
        replace(*arguments)

    replace = adapters.replace
    monkeypatch.setattr(adapters, "replace", add_and_replace)
    slot = np.full(1, decoder.add_adapter(one), np.int32)
    logits = [await step_logits(decoder, each) for each in (slot, slot)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5)
    other = await step_logits(decoder, np.array(added, np.int32))
    assert np.abs(other - logits[0]).max() > 0.01


async def test_a_step_with_adapters_is_few_native_runs(monkeypatch):
    from flowmx.graph.running.native import NativeSteps

    runs, record = [], NativeSteps._record

    def recorded(self, run, steps):
        yield from record(self, run, steps)
        runs.append(self.pieces)

    monkeypatch.setattr(NativeSteps, "_record", recorded)
    async with Generator(PagedDecoder(from_pretrained(MODEL), pages=64, page_size=4)) as generator:
        generator.add_adapter("one", (await random_adapter(1))[0])
        await asyncio.gather(*(generator([1, 2], max_tokens=80, adapter=name) for name in (None, "one")))
    names = {step.node.op.name for pieces in runs[-1:] for piece in pieces if piece.run is None for step in piece.steps}
    if not runs:
        pytest.skip("this machine has no native runs")
    assert "elemwise_mul" not in names
    assert "slice_axis" not in names


async def test_adapters_are_replaced_and_removed_while_requests_run():
    one, two = (await random_adapter(1)), (await random_adapter(2))
    async with Generator(PagedDecoder(from_pretrained(MODEL), pages=64, page_size=4)) as generator:
        generator.add_adapter("a", one[0])
        running = generator(PROMPTS[0], max_tokens=8, temperature=0, adapter="a")
        first = await anext(running)
        generator.add_adapter("a", two[0])
        assert (await answers(generator, "a"))[0] == await texts(two[1])
        generator.remove_adapter("a")
        assert [first.number, *[token.number async for token in running]] == (await texts(one[1]))[0]
        with pytest.raises(ValueError, match="there is no adapter 'a', only none"):
            generator([1], adapter="a")
        with pytest.raises(ValueError, match="there is no adapter 'a'"):
            generator.remove_adapter("a")
        for name in "bcdefg":  # freed slots are used again
            generator.add_adapter(name, one[0])
            generator.remove_adapter(name)
        generator.add_adapter("h", two[0])
        assert (await answers(generator, "h"))[0] == await texts(two[1])
        assert generator.decoder._adapters.apply().mask([0]).shape == (1, 2 * 8)


def quantized_network():
    """Return a network whose dense layers have quantized weights."""
    mx.random.seed(0)
    net = mx.gluon.model_zoo.text.LlamaLM(
        vocab_size=50, units=32, num_layers=2, num_heads=2, num_key_heads=1, hidden_units=64, prefix="net_"
    )
    net.initialize(mx.init.Normal(0.3))
    net(mx.nd.zeros((1, 1), dtype="int32"))
    for path, layer in lora.layers.dense_layers(net).items():
        rows = FORMATS["Q8_0"].quantize(layer.weight.data().asnumpy())
        packed = PackedDense(len(rows), layer.weight.shape[1], "Q8_0")
        packed.set_rows(rows)
        lora.layers.replace(net, path, packed)
    return net


def test_a_quantized_network_has_adapters():
    net = quantized_network()
    adapter = lora.attach(net, "attention|widen", rank=2)
    for parameter in adapter.parameters():
        parameter.set_data(mx.nd.random.normal(0, 0.5, shape=parameter.shape))
    weights, expected = adapter.weights(), asyncio.run(texts(net))
    adapter.detach()

    async def main():
        async with Generator(PagedDecoder(net, pages=64)) as generator:
            plain = (await answers(generator, None))[0]
            generator.add_adapter("a", weights)
            mixed = await answers(generator, None, "a")
            assert mixed[0] == plain
            assert mixed[1] != plain
            matching = np.array(mixed[1]) == np.array(expected)
            assert matching.mean() > 0.7  # a step rounds the data of products with quantized weights

    asyncio.run(main())


async def test_limits_and_errors():
    weights, _ = await random_adapter(1)
    decoder = PagedDecoder(from_pretrained(MODEL), pages=8, max_adapter_bytes=2 * weights.nbytes)
    async with Generator(decoder) as generator:
        generator.add_adapter("a", weights)
        with pytest.raises(Overloaded, match=r"the table of adapters would have .* bytes, expected at most"):
            generator.add_adapter("b", weights)
        assert generator.adapters == ["a"]
        assert (await answers(generator, "a"))[0] == await texts((await random_adapter(1))[1])
        with pytest.raises(ValueError, match="the name of the adapter is empty"):
            generator.add_adapter("", weights)
        with pytest.raises(FileNotFoundError, match=r"adapter_config\.json"):
            await generator.load_adapter("c", MODEL)
        with pytest.raises(ValueError, match="did you mean 'a'"):
            generator([1], adapter="A")
    async with Generator(Scripted()) as generator:
        for call in (lambda: generator.add_adapter("a", weights), lambda: generator.load_adapter("a", PEFT)):
            with pytest.raises(TypeError, match="the decoder is a Scripted"):
                await call()


async def test_files_of_adapters_over_http(folder):  # noqa: F811
    generator = load(folder, name="tiny", max_bytes=1 << 20, adapters={"peft": PEFT})
    await generator.load_adapter("again", PEFT)

    async with Client(generator) as client:

        async def text(model):
            body = {"model": model, "prompt": "abc", "max_tokens": 8, "temperature": 0, "logprobs": 1}
            status, _, reply = await client("POST", "/v1/completions", json.dumps(body).encode(), Content_Type=JSON)
            assert status == 200, reply
            return json.loads(reply)["choices"][0]["logprobs"]

        plain, peft, again = await asyncio.gather(*map(text, ["tiny", "tiny:peft", "tiny:again"]))
        assert plain != peft
        assert peft == again
        models = json.loads((await client("GET", "/v1/models"))[2])["data"]
        assert [(model["id"], model.get("parent")) for model in models] == [
            ("tiny", None), ("tiny:peft", "tiny"), ("tiny:again", "tiny"),
        ]  # fmt: skip
        body = json.dumps({"model": "tiny:other", "prompt": "a"}).encode()
        status, _, reply = await client("POST", "/v1/completions", body, Content_Type=JSON)
        assert (status, json.loads(reply)["error"]["code"]) == (404, "model_not_found")
        metrics = (await client("GET", "/metrics"))[2].decode()
        assert 'flowmx_adapter_requests{model_name="tiny",adapter="peft"} 0' in metrics


def test_the_command_reads_adapters(folder, capsys):  # noqa: F811
    options = command._parser().parse_args([str(folder), "--adapter", f"german={PEFT}", "--adapter", f"b={PEFT}"])
    assert command._model(command._parser(), options).adapters == ["german", "b"]
    for wrong in ("german", "=x", "german="):
        with pytest.raises(SystemExit):
            command._parser().parse_args([str(folder), "--adapter", wrong])
        assert "expected NAME=FOLDER" in capsys.readouterr().err
    shutil.copy(PEFT / "adapter_config.json", folder)
    options = command._parser().parse_args([str(folder), "--adapter", f"a={folder}"])
    with pytest.raises(FileNotFoundError, match="has no weights of an adapter"):
        command._model(command._parser(), options)
