"""Texts that fit a JSON schema, and schemas that are refused."""

import asyncio
import json
import random
import sys
import time

import jsonschema
import pytest

import flowmx as mx
from flowmx.generation import Generator, PagedDecoder, SchemaError, Tokenizer
from flowmx.generation.schemas import SchemaCompiler
from tests.generation.test_generator import Scripted, Words, numbers
from tests.generation.test_tokenizer import trained

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPTS = ["Name:", "Somebody is 5 years old", "x", "Name: A, Name: B, Name: C"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(trained(), bos=0, eos=1)


@pytest.fixture(scope="module")
def net():
    mx.random.seed(0)
    net = mx.gluon.model_zoo.text.LlamaLM(
        vocab_size=420, units=16, num_layers=2, num_heads=2, num_key_heads=1, hidden_units=24
    )  # 20 more logits than tokens: they are never chosen
    net.initialize(mx.init.Normal(0.4))
    return net


def generator(net, tokenizer, pages=400, **options):
    return Generator(PagedDecoder(net, pages=pages, page_size=16), tokenizer, **options)


def is_valid(text, schema):
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.FormatChecker(["date", "ipv4", "uuid"])
    )
    return validator.is_valid(json.loads(text))


# -- random schemas ----------------------------------------------------------------------------------------


def random_schema(source, depth=0):
    """Return a random schema whose texts are short."""
    kinds = [_string, _number, _integer, _enum, _boolean]
    if depth < 3:
        kinds += [_object, _object, _array, _array, _tuple, _any_of, _reference]
    return source.choice(kinds)(source, depth + 1)


def _string(source, depth):
    forms = [
        {"minLength": source.randint(0, 3), "maxLength": source.randint(3, 8)},
        {"pattern": source.choice(["^[a-c]{2,4}$", "^(yes|no)$", "^x+y?$", "^[^\\\\d]{1,3}$", "\\d"]), "maxLength": 20},
        {"format": source.choice(["date", "time", "date-time", "ipv4", "uuid"])},
    ]
    return {"type": "string"} | source.choice(forms)


def _number(source, depth):
    low = source.uniform(-100, 100)
    return {"type": "number", "minimum": low, "maximum": low + source.uniform(0.1, 1000)}


def _integer(source, depth):
    low = source.randint(-1000, 1000)
    kind = source.choice(["minimum", "exclusiveMinimum"])
    return {"type": source.choice(["integer", ["integer", "null"]]), kind: low, "maximum": low + source.randint(1, 500)}


def _enum(source, depth):
    return {"enum": source.sample([1, 2.5, "one", 'quo"te', "é🎉", None, True, [1], {"a": 1}], source.randint(1, 5))}


def _boolean(source, depth):
    return {"type": ["boolean", "null"]} if source.random() < 0.5 else {"type": "boolean"}


def _object(source, depth):
    names = source.sample(["a", "b", "name", "the key", "é"], source.randint(1, 4))
    properties = {name: random_schema(source, depth) for name in names}
    more = source.choice([False, False, {"type": "boolean"}])
    required = source.sample(names, source.randint(0, len(names)))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": more}


def _array(source, depth):
    low = source.randint(0, 2)
    return {"type": "array", "items": random_schema(source, depth), "minItems": low, "maxItems": low + 2}


def _tuple(source, depth):
    items = [random_schema(source, depth) for _ in range(source.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": source.randint(0, len(items))}


def _any_of(source, depth):
    return {"anyOf": [random_schema(source, depth) for _ in range(source.randint(1, 3))]}


def _reference(source, depth):
    return {"$defs": {"part": random_schema(source, depth)}, "$ref": "#/$defs/part"} if depth == 1 else {"const": depth}


async def test_texts_of_a_thousand_random_schemas_are_valid(net, tokenizer):
    source = random.Random(0)
    closing = {tokenizer.encode(text)[0]: 3.0 for text in '"}],'}  # otherwise random texts are long
    schemas = [random_schema(source) for _ in range(1000)]
    async with generator(net, tokenizer, pages=4000, max_sequences=64, max_length=2000) as model:
        results = await asyncio.gather(*(
            model(source.choice(PROMPTS), schema=schema, seed=index, logit_bias=closing)
            for index, schema in enumerate(schemas)
        ))  # fmt: skip
    for schema, result in zip(schemas, results, strict=True):
        assert result.finish_reason == "stop", (schema, result.text)
        assert is_valid(result.text, schema), (schema, result.text)


# -- one request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"pages": 30, "max_sequences": 2}, {"drafts": 3}, {"pages": 14}])
async def test_texts_do_not_depend_on_others_drafts_or_preemption(net, tokenizer, options):
    async with generator(net, tokenizer, max_length=200) as model:
        alone = [await model(prompt, schema=PERSON, seed=index) for index, prompt in enumerate(PROMPTS)]
    async with generator(net, tokenizer, max_length=200, **options) as model:
        others = [model(prompt, seed=9, max_tokens=60) for prompt in PROMPTS]
        together = await asyncio.gather(
            *(model(prompt, schema=PERSON, seed=index) for index, prompt in enumerate(PROMPTS))
        )
        await asyncio.gather(*others)
        if options == {"pages": 14}:
            assert "vllm:num_preemptions_total{" in model.metrics.text()
    assert [numbers(each.tokens) for each in together] == [numbers(each.tokens) for each in alone]
    assert all(is_valid(each.text, PERSON) for each in alone)


async def test_a_stream_ends_with_the_text(net, tokenizer):
    async with generator(net, tokenizer) as model:
        schema = await model.compile({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2})
        tokens = [token async for token in model("x", schema=schema, temperature=0, ignore_end=True)]
        assert [token.finish_reason for token in tokens] == [None] * (len(tokens) - 1) + ["stop"]
        assert len(json.loads("".join(token.text for token in tokens))) == 2
        whole = await model("x", schema=schema, temperature=0, logprobs=2)
        assert [token.number for token in whole.tokens] == [token.number for token in tokens]
        cut = await model("x", schema=schema, temperature=0, stop=[","])
        assert (cut.text + ",", cut.finish_reason) == (whole.text[: whole.text.index(",") + 1], "stop")
        short = await model("x", schema=schema, temperature=0, max_tokens=1)
        assert short.finish_reason == "length"


async def test_a_text_that_may_continue_ends_with_an_end_token(net, tokenizer):
    async with generator(net, tokenizer) as model:
        result = await model("x", schema={"type": "integer"}, logit_bias={1: 100.0}, seed=0)
        assert result.tokens[-1].number == 1
        assert isinstance(json.loads(result.text), int)
        closing = dict.fromkeys(tokenizer.encode('"}]'), 9.0)
        result = await model("x", response_format={"type": "json_object"}, logit_bias=closing | {1: 100.0}, seed=0)
        assert isinstance(json.loads(result.text), dict)


async def test_a_vocabulary_without_end_tokens(net):
    async with generator(net, Tokenizer(trained())) as model:
        assert json.loads((await model("x", schema={"const": [1]})).text) == [1]
        assert len((await model("x", schema={"type": "string", "pattern": "^a{3}$"})).text) == 5


# -- what is refused ---------------------------------------------------------------------------------------

REFUSED = {
    "not an object": ("[1]", "expected a JSON object"),
    "not JSON": ("{", "the schema is not JSON"),
    "nested": ('{"items":' * 9000, "the schema is not JSON"),
    "long": ({"enum": [str(number) for number in range(9000)]}, "expected at most 32768"),
    "not enforced": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "lenient": ({"uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
    "unknown type": ({"type": "text"}, "text"),
    "no text": ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable"),
    "endless": ({"$ref": "#"}, "no text fits it"),
    "elsewhere": ({"$ref": "http://127.0.0.1/schema"}, "does not fetch"),
    "exponential": (
        {"allOf": [{"anyOf": [{"required": [f"{n}"]}, {"properties": {f"{n}": {"const": 2}}}]} for n in range(16)]},
        "too large",
    ),
    "lookahead": ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
    "float": ({"const": float("nan")}, "the schema is not JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_schemas_that_are_refused(net, tokenizer, name):
    schema, message = REFUSED[name]
    async with generator(net, tokenizer) as model:
        with pytest.raises(SchemaError, match=message):
            await model.compile(schema)
        with pytest.raises(SchemaError, match=message):
            await model("x", schema=schema)
        assert len(model) == 0


HOSTILE = {
    "repetition": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    "alternatives": {"type": "string", "pattern": "|".join(f"{letter}.*{letter}" for letter in "abcdefghijklmnop")},
    "classes": {"type": "string", "pattern": "^(\\p{L}{1,300}\\p{N}{1,300}){30}$"},
    "properties": {"type": "object", "properties": {f"p{number}": {} for number in range(2500)}},
    "objects": {"anyOf": [{"properties": {f"a{number}": {"pattern": f".*{number}"}}} for number in range(500)]},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_schemas_fail_and_others_continue(net, tokenizer, name):
    async with generator(net, tokenizer) as model:
        start = time.process_time()
        hostile = model("x", schema=HOSTILE[name], max_tokens=20, seed=0)
        other = model("x", schema=PERSON, seed=1)
        assert is_valid((await other).text, PERSON)
        try:
            await hostile
        except SchemaError as error:
            assert "schema" in str(error)  # noqa: PT017 (some of them only end at max_tokens)
        assert time.process_time() - start < 10
        assert len(model) == 0


async def test_bad_arguments(net, tokenizer):
    async with generator(net, tokenizer) as model:
        with pytest.raises(TypeError, match="schema is a int, expected a JSON schema"):
            model("x", schema=5)
        for wrong in ({"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, {}):
            with pytest.raises(ValueError, match="expected the type text, json_object, or json_schema"):
                model("x", response_format=wrong)
        with pytest.raises(ValueError, match="leave one of them out"):
            model("x", schema={}, response_format={"type": "json_object"})
    async with Generator(Scripted(), Words()) as model:
        with pytest.raises(TypeError, match=r"a tokenizer of the type Words, .* token_bytes"):
            model("A", schema={})


async def test_the_package_is_missing(net, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    async with generator(net, tokenizer) as model:
        with pytest.raises(ImportError, match="pip install llguidance"):
            await model("x", schema={"type": "object"})
        assert (await model("x", max_tokens=2)).finish_reason == "length"


async def test_the_loop_runs_while_a_schema_is_compiled(net, tokenizer, monkeypatch):
    gate, compiling = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def slowly(self, source):
        compiling.append(source)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return compile_now(self, source)

    compile_now = SchemaCompiler.compile
    monkeypatch.setattr(SchemaCompiler, "compile", slowly)
    async with generator(net, tokenizer) as model:
        waiting = model("x", schema=PERSON, seed=0)
        cancelled = model("x", schema=PERSON | {"title": "another"})
        assert (await model("x", max_tokens=3)).finish_reason == "length"
        cancelled.cancel()
        assert (await cancelled).finish_reason == "cancelled"
        gate.set()
        assert is_valid((await waiting).text, PERSON)
        assert (await model("x", schema=PERSON, seed=0)).text == (await waiting).text
        assert compiling.count(json.dumps(PERSON)) == 1
