"""Generators: the tokens of requests that share steps, and how requests end."""

import asyncio
import gc
import os
import threading
import traceback

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import EngineError, Overloaded
from flowmx.generation import Generator, PagedDecoder

VOCABULARY = 50
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5], [7], [1, 2, 3, 4, 5, 6, 7, 8]]


def network(seed=0):
    mx.random.seed(seed)
    net = mx.gluon.model_zoo.text.LlamaLM(
        vocab_size=VOCABULARY, units=16, num_layers=2, num_heads=2, num_key_heads=1, hidden_units=24, prefix="net_"
    )
    net.initialize(mx.init.Normal(0.4))
    net(mx.nd.zeros((1, 1), dtype="int32"))
    return net


@pytest.fixture(scope="module")
def net():
    return network()


def expected(net, prompt, count):
    """Return the most probable tokens, one by one, from the dense forward."""
    tokens = list(prompt)
    for _ in range(count):
        logits = net(mx.nd.array([tokens], dtype="int32")).asnumpy()
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def numbers(tokens):
    return [token.number for token in tokens]


class Words:
    """A tokenizer whose tokens are letters; token 0 ends a text."""

    end_tokens = frozenset([0])

    def encode(self, text, special=True):
        return [ord(letter) % VOCABULARY for letter in text]

    def token_text(self, number):
        return chr(ord("A") + number)

    def stream(self):
        class Stream:
            def push(stream, number):  # noqa: N805
                return self.token_text(number)

        return Stream()


class Scripted:
    """A decoder whose tokens count up from the last one; it records its steps, and may fail."""

    def __init__(self, pages=8, page_size=4):
        self.pages, self.page_size, self.steps, self.failures, self.gate = pages, page_size, [], [], None
        self.cleared = 0

    def step(self, batch):
        self.steps.append(batch)
        if self.failures:
            raise self.failures.pop()
        logits = np.zeros((len(batch.rows), VOCABULARY), np.float32)
        logits[np.arange(len(batch.rows)), (batch.tokens[batch.rows] + 1) % VOCABULARY] = 9
        return mx.nd.array(logits)

    def copy_page(self, source, target):
        pass

    def clear(self):
        self.cleared += 1

    def set_parameters(self, parameters):
        if "unknown" in parameters:
            raise ValueError("no parameter 'unknown'")


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(("pages", "prefill_tokens"), [(40, 256), (12, 5)])
def test_requests_that_share_steps_get_their_own_tokens(net, pages, prefill_tokens, drafts):
    texts = [expected(net, prompt, 10) for prompt in PROMPTS]

    async def main():
        decoder = PagedDecoder(net, pages=pages, page_size=4)
        async with Generator(decoder, prefill_tokens=prefill_tokens, max_sequences=3, drafts=drafts) as generator:
            for _ in range(2):  # the second time, prompts are in the cache
                results = await asyncio.gather(
                    *(generator(prompt, max_tokens=10, temperature=0) for prompt in PROMPTS)
                )  # fmt: skip
                assert [numbers(result.tokens) for result in results] == texts
            assert results[1].usage.prompt_tokens == 9
            if pages == 40:
                assert results[1].usage.cached_tokens == 8

    asyncio.run(main())


async def test_a_seed_gives_the_same_tokens_in_any_batch(net):
    async with Generator(PagedDecoder(net, pages=40, page_size=4)) as generator:
        alone = await generator(PROMPTS[0], max_tokens=12, seed=3)
        together = await asyncio.gather(
            *(generator(prompt, max_tokens=12, seed=3 + index) for index, prompt in enumerate(PROMPTS))
        )
        assert numbers(together[0].tokens) == numbers(alone.tokens)


async def test_tokens_come_one_by_one_with_their_text():
    async with Generator(Scripted(), Words()) as generator:
        tokens = [token async for token in generator([5], max_tokens=4, temperature=0, logprobs=1)]
        assert numbers(tokens) == [6, 7, 8, 9]
        assert [token.text for token in tokens] == ["G", "H", "I", "J"]
        assert [token.finish_reason for token in tokens] == [None, None, None, "length"]
        assert tokens[0].top_logprobs[0].text == "G"
        assert 'vllm:generation_tokens_total{model_name="model"} 4' in generator.metrics.text()


async def test_end_tokens_and_stop_strings_end_a_text():
    async with Generator(Scripted(pages=30), Words()) as generator:
        completion = await generator([46], temperature=0)
        assert (completion.text, completion.finish_reason) == ("pqr", "stop")
        assert numbers(completion.tokens) == [47, 48, 49, 0]
        assert numbers((await generator([46], temperature=0, max_tokens=6, ignore_end=True)).tokens)[-1] == 2
        completion = await generator([5], temperature=0, stop=["JK", "no"])
        assert (completion.text, completion.finish_reason) == ("GHI", "stop")
        completion = await generator("A", temperature=0, max_tokens=2)
        assert len(completion.text) == 2


async def test_a_text_ends_where_the_cache_does():
    async with Generator(Scripted(pages=3, page_size=4)) as generator:
        completion = await generator([1, 2, 3], temperature=0)
        assert (len(completion.tokens), completion.finish_reason) == (9, "length")


@pytest.mark.parametrize("how", ["cancel", "close", "drop", "task"])
async def test_an_abandoned_generation_frees_its_pages(how):
    async with Generator(Scripted(pages=30)) as generator:
        generation = generator([1], temperature=0)
        token = await anext(generation)
        assert token.number == 2
        if how == "cancel":
            generation.cancel()
            assert (await generation).finish_reason == "cancelled"
        elif how == "close":
            await generation.aclose()
            assert len([token async for token in generation]) < 64
        elif how == "drop":
            del generation
            gc.collect()
        else:
            task = asyncio.create_task(generation._whole())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        other = await generator([1, 2], temperature=0, max_tokens=3)
        assert numbers(other.tokens) == [3, 4, 5]
        assert len(generator) == 0
        assert generator._scheduler.pool.used == 0


async def test_a_slow_reader_pauses_its_own_request_only():
    decoder = Scripted(pages=100)
    async with Generator(decoder) as generator:
        slow = generator([1], temperature=0, max_tokens=200)
        quick = await generator([2], temperature=0, max_tokens=150)
        assert len(quick.tokens) == 150
        assert slow.usage.completion_tokens == 64
        assert len([token async for token in slow]) == 200


async def test_a_failed_step_fails_its_requests_and_the_generator_goes_on():
    decoder = Scripted()
    async with Generator(decoder) as generator:
        decoder.failures.append(RuntimeError("out of order"))
        with pytest.raises(RuntimeError, match="out of order"):
            await generator([1], temperature=0)
        assert decoder.cleared == 1
        assert numbers((await generator([1], temperature=0, max_tokens=2)).tokens) == [2, 3]
        with pytest.raises(ValueError, match="logit_bias has the token 99"):
            await generator([1], logit_bias={99: 1})
        assert len(generator) == 0


async def test_poisoned_logits_reach_the_reader():
    def fail():
        raise KeyError("weights")

    decoder = Scripted()
    plain = decoder.step

    def step(batch):
        logits = plain(batch)
        if len(decoder.steps) == 2:
            mx.engine.push(fail, writes=[logits])
        return logits

    decoder.step = step
    async with Generator(decoder) as generator:
        with pytest.raises(KeyError, match="weights"):
            await generator([1], temperature=0, max_tokens=5)
        assert len((await generator([1], temperature=0, max_tokens=5)).tokens) == 5


@pytest.mark.parametrize("policy", ["step", "recompute", "drain"])
async def test_swapped_weights_take_effect_between_steps(net, policy):
    other = network(seed=1)
    values = {name: parameter.data() for name, parameter in other.collect_params().items()}
    own = {name: parameter.data().copy() for name, parameter in net.collect_params().items()}
    try:
        async with Generator(PagedDecoder(net, pages=40, page_size=4)) as generator:
            running = generator(PROMPTS[0], max_tokens=12, temperature=0)
            await anext(running)
            assert await generator.swap(values, policy) == 1
            versions = [token.version async for token in running]
            assert versions == sorted(versions)
            assert (1 in versions) == (policy != "drain")
            fresh = await generator(PROMPTS[0], max_tokens=6, temperature=0)
            assert {token.version for token in fresh.tokens} == {1}
        texts = numbers(fresh.tokens)
        assert texts == await asyncio.to_thread(expected, other, PROMPTS[0], 6)
    finally:
        for name, value in own.items():
            net.collect_params()[name].set_data(value)


async def test_a_swap_that_does_not_fit_changes_nothing(net):
    async with Generator(PagedDecoder(net, pages=4)) as generator:
        with pytest.raises(mx.errors.ParameterError, match="no parameter 'weight'"):
            await generator.swap({"weight": mx.nd.ones(1)})
        name = next(iter(net.collect_params()))
        with pytest.raises(mx.errors.ShapeError, match="expected"):
            await generator.swap({name: mx.nd.ones(1)})
        with pytest.raises(ValueError, match="policy is 'now', expected one of step"):
            await generator.swap({}, "now")
        assert generator.version == 0


async def test_requests_that_are_refused():
    async with Generator(Scripted(pages=2), max_requests=1) as generator:
        for prompt, options, error, message in [
            ([], {}, ValueError, "the prompt has no tokens"),
            ([1] * 8, {}, ValueError, "the prompt has 8 tokens, expected at most 7"),
            ("text", {}, TypeError, "no tokenizer"),
            ([{"role": "user", "content": "a"}], {}, TypeError, "no chat template"),
            ([1], {"max_tokens": 0}, ValueError, "max_tokens is 0"),
            ([1], {"temprature": 1}, TypeError, "temprature"),
            ([1], {"stop": [""]}, ValueError, "empty string"),
            ([1], {"response_format": {"type": "json_object"}}, TypeError, "no tokenizer, but a schema needs"),
            ([1], {"response_format": {"type": "xml"}}, ValueError, "response_format"),
        ]:
            with pytest.raises(error, match=message):
                generator(prompt, **options)
        waiting = generator([1])
        with pytest.raises(Overloaded, match="1 requests are unfinished, at most 1 may be"):
            generator([1])
    with pytest.raises(EngineError, match="closed"):
        await waiting
    with pytest.raises(EngineError, match="closed"):
        generator([1])


def test_a_generator_is_used_on_several_loops_in_turns():
    generator = Generator(Scripted())

    async def main():
        return numbers((await generator([1], temperature=0, max_tokens=3)).tokens)

    assert [asyncio.run(main()) for _ in range(2)] == [[2, 3, 4]] * 2

    async def leave():
        generation = generator([1], temperature=0)
        await anext(generation)
        return generation

    left = asyncio.run(leave())
    assert asyncio.run(main()) == [2, 3, 4]
    assert len(generator) == 0
    del left


async def test_requests_leave_nothing_behind():
    random = np.random.default_rng(0)
    async with Generator(Scripted(pages=12), max_sequences=4, drafts=2) as generator:

        async def one(index):
            generation = generator([int(token) for token in random.integers(1, 40, 1 + index % 9)], max_tokens=12)
            if index % 4 == 0:
                await generation
            elif index % 4 == 1:
                async for token in generation:
                    if token.number % 3 == 0:
                        break
            elif index % 4 == 2:
                await anext(generation)
                generation.cancel()

        for _ in range(10):
            await asyncio.gather(*map(one, range(40)))
        gc.collect()
        await generator([1], max_tokens=1)
        assert len(generator) == 0
        assert generator._scheduler.pool.used == 0


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([1.5], TypeError, r"dtype float64, expected integers"),
        ([[1, 2], [3, 4]], TypeError, r"the shape \(2, 2\)"),
        ([-1, 3], ValueError, "tokens from -1 to 3"),
        ([1 << 40], ValueError, "expected 0 to 2147483647"),
    ],
)
async def test_prompts_that_are_no_tokens(prompt, error, message):
    async with Generator(Scripted()) as generator:
        with pytest.raises(error, match=message):
            generator(prompt)
        assert len((await generator(np.array([1], np.int64), max_tokens=2)).tokens) == 2


@pytest.mark.filterwarnings("ignore:.*was never retrieved")
async def test_a_fault_anywhere_ends_the_requests_instead_of_hanging():
    class Broken(Scripted):
        def clear(self):
            raise OSError("the disk is full")

    decoder = Broken()
    generator = Generator(decoder)
    other = Generator(Scripted())
    decoder.failures.append(RuntimeError("first"))
    generation = generator([1])
    with pytest.raises(RuntimeError, match="first"):
        await generation
    with pytest.raises(IndexError):
        await other([VOCABULARY + 9], repetition_penalty=1.5)
    assert len(generator) == len(other) == 0
    assert len((await generator([1], max_tokens=2)).tokens) == 2


async def test_a_cancelled_swap_changes_nothing(net):
    async with Generator(PagedDecoder(net, pages=40, page_size=4)) as generator:
        running = generator(PROMPTS[0], max_tokens=12, temperature=0)
        await anext(running)
        swap = asyncio.create_task(generator.swap(policy="drain"))
        await asyncio.sleep(0)
        swap.cancel()
        first, second = await asyncio.gather(running, generator(PROMPTS[1], max_tokens=5, temperature=0))
        assert (len(first.tokens), len(second.tokens), generator.version) == (12, 5, 0)


def test_a_generation_is_read_on_its_own_loop():
    generator = Generator(Scripted(pages=3000))

    async def begin():
        generation = generator([1], temperature=0)
        await anext(generation)
        return generation

    async def read(generation):
        await generation

    left = asyncio.run(begin())
    with pytest.raises(EngineError, match="loop of the request has ended"):
        asyncio.run(read(left))


def test_a_generator_is_closed_from_another_loop():
    generator = Generator(Scripted(pages=3000))
    started, loops = threading.Event(), []

    async def generate():
        loops.append(asyncio.get_running_loop())
        generation = generator([1], temperature=0)
        await anext(generation)
        started.set()
        with pytest.raises(EngineError, match="closed"):
            await generation

    thread = threading.Thread(target=asyncio.run, args=[generate()])
    thread.start()
    started.wait(30)
    asyncio.run(generator.aclose())
    thread.join(30)
    assert not thread.is_alive()
    assert len(generator) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_generates_by_itself(net):
    generator = Generator(PagedDecoder(net, pages=40, page_size=4))

    async def text():
        return numbers((await generator(PROMPTS[0], max_tokens=6, temperature=0)).tokens)

    async def main():
        running = generator(PROMPTS[1], max_tokens=20, temperature=0)
        await anext(running)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                asyncio.set_event_loop(None)
                asyncio._set_running_loop(None)
                status = 0 if asyncio.run(text()) == wanted and len(generator) == 0 else 2
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert len((await running).tokens) == 20

    wanted = expected(net, PROMPTS[0], 6)
    asyncio.run(main())


def test_after_a_warm_up_no_step_compiles():
    net = network()
    decoder = PagedDecoder(net, 64, 16)
    pushed = []
    step = decoder.step
    decoder.step = lambda batch: (pushed.append(decoder.is_new(batch)), step(batch))[1]

    async def main():
        async with Generator(decoder, max_sequences=4, prefill_tokens=20) as generator:
            warming = asyncio.create_task(generator.warm_up())
            early = await generator([1, 2, 3], max_tokens=4, temperature=0)
            await warming
            pushed.clear()
            prompts = [[1, 2, 3], list(range(2, 40)), [5], [6] * 9, [7] * 25]
            late = await asyncio.gather(*(generator(each, max_tokens=4, temperature=0) for each in prompts))
        assert numbers(late[0].tokens) == numbers(early.tokens)

    asyncio.run(main())
    assert pushed
    assert not any(pushed)


def test_the_first_token_of_a_prompt_under_load_comes_with_the_second_step_at_the_latest(net):
    decoder, steps = PagedDecoder(net, 64, 16), []
    step = decoder.step
    decoder.step = lambda batch: (steps.append(len(batch.tokens)), step(batch))[1]

    async def main():
        async with Generator(decoder, max_sequences=24, prefill_tokens=64) as generator:
            streams = [generator([each], max_tokens=200, temperature=0) for each in range(16)]
            readers = [asyncio.create_task(_drain(each)) for each in streams]
            await anext(generator([20], max_tokens=1))
            for length in (1, 7, 30, 64):
                for _ in range(3):
                    before = len(steps)
                    await anext(generator([*range(2, 50), *range(2, 50)][:length], max_tokens=1, seed=length))
                    own = [tokens > 16 for tokens in steps[before:]].index(True)
                    assert own <= 1  # before it, only the step that ran when the prompt came
                    assert not all(each.done() for each in readers)
            for reader in readers:
                reader.cancel()

    asyncio.run(main())


async def _drain(generation):
    async for _ in generation:
        pass
