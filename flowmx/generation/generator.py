"""Generators: a language model whose texts are awaited by any number of tasks, and computed in shared steps."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import product
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from flowmx import forks
from flowmx.comm.metrics import Metrics
from flowmx.comm.offload import submit
from flowmx.errors import EngineError
from flowmx.event_loops import AsyncContext
from flowmx.generation import flight_report
from flowmx.generation.adapter_registry import AdapterRegistry
from flowmx.generation.generation import Ending, Generation, Request, Vocabulary
from flowmx.generation.metrics import GeneratorMetrics
from flowmx.generation.pages import PagePool
from flowmx.generation.prompt_lookup import PromptLookup
from flowmx.generation.sampling import Choice, Floats, Sampler, Sampling
from flowmx.generation.scheduling import Part, Scheduler, Step, TokenSequence
from flowmx.generation.schemas import Schema, SchemaCompiler, requested_schema
from flowmx.generation.step_batch import StepBatch
from flowmx.generation.step_forms import StepForms
from flowmx.generation.stopping import StopStrings
from flowmx.gluon.lora.weights import AdapterWeights
from flowmx.keywords import ChecksKeywords
from flowmx.ndarray import NDArray

__all__ = ["Decoder", "Generator"]

Messages = Sequence[Mapping[str, object]]
_LARGE = 1 << 16
"""The number of logits above which sampling runs on another thread, so that the event loop is not blocked."""
_MAX_TOKEN = 1 << 31
_POLICIES = ("step", "recompute", "drain")


class Decoder(Protocol):
    """Computes the steps of a generator; see :class:`~flowmx.generation.PagedDecoder`."""

    @property
    def pages(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    def step(self, batch: StepBatch) -> NDArray:
        """Push a step; return the logits (R, vocabulary)."""

    def copy_page(self, source: int, target: int) -> None:
        """Push a copy of a page."""

    def clear(self) -> None:
        """Push the erasure of the cache, after a step has failed."""

    def set_parameters(self, parameters: Mapping[str, NDArray]) -> None:
        """Push new values of parameters."""


class Tokenizer(Vocabulary, Protocol):
    """Converts texts to tokens; see :class:`~flowmx.generation.Tokenizer`."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text."""


class Template(Protocol):
    """Converts chats to prompts; see :class:`~flowmx.generation.ChatTemplate`."""

    def render(self, messages: Messages, add_generation_prompt: bool = True, tools: Any = None) -> str:
        """Return the prompt of a chat."""


class Generator(ChecksKeywords, AsyncContext):
    """A language model that generates text for many requests at once.

    The requests share steps: each step computes the next token of every running request, and a part of the prompts of
    new ones. The keys and values of equal beginnings of prompts are computed once.

    Args:
        decoder: the model and its cache.
        tokenizer: converts texts to tokens; without one, prompts are tokens and generated tokens have no text.
        template: converts chats to prompts.
        name: the name of the model in metrics.
        max_sequences: the maximum number of requests in a step.
        prefill_tokens: the maximum number of tokens of prompts in a step.
        max_requests: the maximum number of unfinished requests.
        max_length: the maximum number of tokens of a prompt and its text (default: the size of the cache).
        drafts: the number of guesses per step for requests whose text repeats their prompt (speculative decoding by
            prompt lookup); 0 for none. It does not change the tokens.
        metrics: the registry of metrics (default: a new one).

    Attributes:
        name: as passed.
        metrics: the registry of metrics.
        version: the version of the weights: the number of times that they have been replaced.
        max_length: the maximum number of tokens of a prompt and its text.

    Raises:
        TypeError: the decoder is a network.
        ValueError: a number is not positive.

    Example:
        >>> async with mx.generation.load("model.gguf") as generator:
        ...     async for token in generator("Once upon a time", max_tokens=50):
        ...         print(token.text, end="", flush=True)
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer | None = None, template: Template | None = None,
        name: str = "model", max_sequences: int = 16, prefill_tokens: int = 256, max_requests: int = 1024,
        max_length: int | None = None, drafts: int = 0, metrics: Metrics | None = None,
    ) -> None:  # fmt: skip
        if not hasattr(decoder, "pages"):
            raise TypeError(
                f"decoder is a {type(decoder).__name__}, expected a decoder with a cache: write "
                "Generator(PagedDecoder(net, pages=128)), whose cache has 128 pages of 16 tokens"
            )
        self.decoder, self.tokenizer, self.template, self.name = decoder, tokenizer, template, name
        self._scheduler = Scheduler(
            PagePool(decoder.pages, decoder.page_size), max_sequences, prefill_tokens, max_requests
        )
        self.max_length = min(max_length or self._scheduler.capacity, self._scheduler.capacity)
        self._lookup = PromptLookup(drafts) if drafts else None
        self.metrics = Metrics() if metrics is None else metrics
        self._counts = GeneratorMetrics.of(self.metrics)
        self.version = 0
        self._requests: dict[TokenSequence, Request] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakeup = asyncio.Event()
        self._swaps: list[tuple[Mapping[str, NDArray] | None, str, asyncio.Future[int]]] = []
        self._preemptions = 0
        self._adapters = AdapterRegistry(decoder)
        self._compiler: SchemaCompiler | None = None
        self._compiling, self._pushing = asyncio.Lock(), asyncio.Lock()
        self._is_closed = False
        weakref.finalize(self, flight_report.register(name, self._counts, self._scheduler, self._adapters))
        self._forks = forks.generation()

    def __call__(
        self, prompt: str | Sequence[int] | Messages, *, max_tokens: int | None = None,
        stop: str | Sequence[str] = (), priority: int = 0, tools: Sequence[Mapping[str, object]] | None = None,
        ignore_end: bool = False, response_format: Mapping[str, object] | None = None,
        schema: Mapping[str, object] | str | Schema | None = None, adapter: str | None = None, **sampling: Any,
    ) -> Generation:  # fmt: skip
        """Begin a generation, and return it; its tokens are computed by a task of the running event loop.

        Args:
            prompt: a text, tokens, or the messages of a chat, each with ``role`` and ``content``.
            max_tokens: the maximum number of tokens (default: as many as ``max_length`` allows).
            stop: strings that end the text.
            priority: requests of a higher priority are computed first.
            tools: tools that the chat template describes to the model.
            ignore_end: generate also after the tokenizer's end tokens.
            response_format: the format of the text as in OpenAI's API: ``{"type": "text"}``, ``{"type":
                "json_object"}``, or ``{"type": "json_schema", "json_schema": {"schema": SCHEMA}}``.
            schema: a JSON schema that the text fits if it ends with ``"stop"``: a mapping, JSON, or the result of
                :meth:`compile`. It needs the package ``llguidance``. A schema that is not supported fails the
                generation with a :class:`SchemaError`.
            adapter: the name of an adapter that has been added (default: none).
            **sampling: fields of :class:`Sampling`.

        Raises:
            ValueError: a setting is out of range, or the prompt is empty, too long or not in the vocabulary, or the
                schema is not JSON or too long, or there is no such adapter.
            TypeError: a setting has the wrong type, or the prompt needs a tokenizer or a template that is missing.
            Overloaded: there are too many unfinished requests.
            EngineError: the generator is closed, or runs on another event loop.
        """
        schema = requested_schema(schema, response_format)
        if isinstance(schema, str):
            schema = self._schemas().find(schema) or schema
        settings = Sampling(**sampling)
        tokens = self.tokens(prompt, tools)
        room = self.max_length - len(tokens)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, expected at most {self.max_length - 1}: shorten it, or raise "
                "max_length and the size of the cache"
            )
        if max_tokens is not None and (isinstance(max_tokens, bool) or max_tokens < 1):
            raise ValueError(f"max_tokens is {max_tokens}, expected 1 or more")
        self._enter_loop()
        sequence = TokenSequence(tokens, priority, self._adapters.find(adapter))
        ends = frozenset() if ignore_end or self.tokenizer is None else self.tokenizer.end_tokens
        ending = Ending(min(room, max_tokens or room), ends, StopStrings([stop] if isinstance(stop, str) else stop))
        request = Request(
            sequence, Sampler(settings, tokens), ending, self.tokenizer, self._lookup, self._wake,
            asyncio.get_running_loop(),
        )  # fmt: skip
        self._admit(request, schema)
        return Generation(request)

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that requests may name."""
        return list(self._adapters)

    def add_adapter(self, name: str, weights: AdapterWeights) -> None:
        """Add a low-rank adapter for requests that name it, or replace that of the name.

        Requests with different adapters, or without one, share steps. Requests that run keep the adapter with which
        they began.

        Args:
            name: the name.
            weights: those of a folder (:func:`mx.gluon.lora.read`) or of a network in training (``lora.weights()``).

        Raises:
            Overloaded: the table of adapters would be too large.
            TypeError: the decoder takes no adapters.
            ValueError: the name is empty.
        """
        self._adapters.add(name, weights)

    async def load_adapter(self, name: str, folder: str | os.PathLike[str]) -> None:
        """Read an adapter from a folder of Hugging Face's PEFT on another thread, and add it.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is malformed, or the adapter does not fit the network.
            Overloaded: the table of adapters would be too large.
            TypeError: the decoder takes no adapters.
        """
        read = getattr(self.decoder, "read_adapter", None)
        if read is None:
            raise TypeError(f"the decoder is a {type(self.decoder).__name__}, which reads no adapters: add_adapter()")
        self.add_adapter(name, await submit(read, folder))

    def remove_adapter(self, name: str) -> None:
        """Remove an adapter; requests that run keep it.

        Raises:
            ValueError: there is no adapter of the name.
        """
        self._adapters.remove(name)

    async def compile(self, schema: Mapping[str, object] | str) -> Schema:
        """Return a compiled JSON schema, to be passed as ``schema``. It is compiled on another thread.

        Raises:
            SchemaError: the schema is malformed, not supported or too large, or no text fits it.
            TypeError: the tokenizer does not know the bytes of its tokens.
            ImportError: ``llguidance`` is not installed.
        """
        source = requested_schema(schema, None)
        assert isinstance(source, str)
        compiler = self._schemas()
        if (compiled := compiler.find(source)) is not None:
            return compiled
        self._enter_loop()
        async with self._compiling:  # one at a time, so that many do not occupy all threads
            return await submit(compiler.compile, source)

    async def swap(self, parameters: Mapping[str, NDArray] | None = None, policy: str = "step") -> int:
        """Replace weights between two steps; return their version.

        Args:
            parameters: new values by name of the parameter; None if they have been written already, for example by
                ``trainer.step()``.
            policy: ``"step"``: running requests continue with the new weights and their present keys and values;
                ``"recompute"``: they compute their keys and values again; ``"drain"``: they finish with the present
                weights, and waiting requests begin with the new ones.

        Raises:
            ValueError: the policy is unknown.
            EngineError: the generator is closed.
        """
        if policy not in _POLICIES:
            raise ValueError(f"policy is {policy!r}, expected one of {', '.join(_POLICIES)}")
        self._enter_loop()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._swaps.append((parameters, policy, future))
        self._wake()
        return await future

    async def warm_up(self) -> None:
        """Compile the graphs of all steps, whenever no request is running; later steps then take no time for this.

        Await it, or run it in a task: requests may begin meanwhile, and wait for one graph at most. Steps with adapters
        are included once an adapter has been added.
        """
        forms = getattr(self.decoder, "forms", None)
        if forms is None:
            return
        warm_up: Callable[[StepForms, bool], NDArray] = self.decoder.warm_up  # type: ignore[attr-defined]
        self._enter_loop()
        scheduler = self._scheduler
        most = scheduler.max_sequences + scheduler.prefill_tokens
        every = list(forms(scheduler.max_sequences, most, self.max_length))
        for each, has_adapters in product(every, (False, True) if len(self.adapters) else (False,)):
            while self._task is not None and not self._task.done():
                await asyncio.wait([self._task])
            if self._is_closed:
                return
            async with self._pushing:
                logits = await asyncio.to_thread(warm_up, each, has_adapters)
            await logits

    async def aclose(self) -> None:
        """End all generations; their readers get an :class:`EngineError`."""
        self._is_closed = True
        error = EngineError("the generator is closed")
        task, loop = self._task, self._loop
        if task is None or loop is None or loop.is_closed() or forks.generation() != self._forks:
            self._fail_all(error)
        elif loop is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
            self._fail_all(error)
        else:
            loop.call_soon_threadsafe(task.cancel)
            loop.call_soon_threadsafe(self._fail_all, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def is_closed(self) -> bool:
        """Whether no further requests are accepted."""
        return self._is_closed

    def __repr__(self) -> str:
        adapters = f" with the adapters {', '.join(self.adapters)}" if self.adapters else ""
        return f"<Generator {self.name!r}{adapters}>"

    def __len__(self) -> int:
        """Return the number of unfinished requests."""
        return len(self._requests)

    # -- requests --------------------------------------------------------------------------------------

    def tokens(self, prompt: str | Sequence[int] | Messages, tools: Any = None, opening: str = "") -> list[int]:
        """Return the tokens of a prompt. Long texts take time: call this on another thread, then pass the tokens.

        Args:
            prompt: as for a call.
            tools: as for a call.
            opening: the beginning of the reply to a chat, such as the marker of a call.

        Raises:
            ValueError: a token is not in the vocabulary, or the template refuses the chat.
            TypeError: the prompt needs a tokenizer or a template that is missing, or is not a list of integers.
        """
        is_chat = not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
        if is_chat:
            if self.template is None:
                raise TypeError("the prompt is a chat, but the model has no chat template: pass a text, or template=")
            prompt = self.template.render(prompt, tools=tools) + opening  # type: ignore[arg-type]
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise TypeError("the prompt is a text, but the generator has no tokenizer: pass tokens, or tokenizer=")
            return self.tokenizer.encode(prompt, special=not is_chat)
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise TypeError(
                f"the prompt has the shape {tokens.shape} and dtype {tokens.dtype}, expected integers (length,)"
            )
        limit = getattr(self.tokenizer, "size", _MAX_TOKEN)
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < limit:
            raise ValueError(f"the prompt has tokens from {tokens.min()} to {tokens.max()}, expected 0 to {limit - 1}")
        return [int(token) for token in tokens]

    def _schemas(self) -> SchemaCompiler:
        if self._compiler is None:
            self._compiler = SchemaCompiler(self.tokenizer)
        return self._compiler

    def _admit(self, request: Request, schema: str | Schema | None) -> None:
        """Queue a request; one whose schema is not compiled yet waits for it outside the steps."""
        sequence = request.sequence
        self._scheduler.add(sequence)
        self._requests[sequence] = request
        self._adapters.acquire(sequence.adapter)
        if isinstance(schema, Schema):
            request.begin(schema)
        elif schema is not None:
            request.hold()
            self._start(self._begin_with_schema(request, schema))
        self._counts.prompt_tokens.add(self.name, by=sequence.prompt_length)
        self._wake()

    async def _begin_with_schema(self, request: Request, source: str) -> None:
        """Compile the schema of a request, and begin the request."""
        try:
            request.begin(await self.compile(source))
        except Exception as error:  # schemas that are not supported, or a missing package
            self._end(request, error)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        """Start a task, and keep it until its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enter_loop(self) -> None:
        """Start the task that computes steps, if it does not run."""
        if self._is_closed:
            raise EngineError("the generator is closed")
        loop = asyncio.get_running_loop()
        if forks.generation() != self._forks:  # the requests are the parent's
            self._forks, self._task = forks.generation(), None
            self._fail_all(EngineError("the request belongs to the process that was forked"))
            self._clear_cache()  # a step that ran during the fork was abandoned here
        if self._task is not None and not self._task.done() and self._loop is not loop:
            if self._loop is None or not self._loop.is_closed():
                raise EngineError("the generator runs on another event loop: use it from one loop at a time")
            self._fail_all(EngineError("the event loop of the request has ended"))
        if self._task is None or self._task.done() or self._loop is not loop:
            if self._loop is not loop:
                self._compiling, self._pushing = asyncio.Lock(), asyncio.Lock()
            self._loop, self._wakeup = loop, asyncio.Event()
            self._task = loop.create_task(self._run(), name=f"flowmx-generator-{self.name}")

    def _wake(self) -> None:
        """Wake the task; this may be called by any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wakeup.set)

    def _fail_all(self, error: Exception) -> None:
        for request in list(self._requests.values()):
            self._end(request, error)
        for *_, future in self._swaps:
            if not future.done():
                future.set_exception(error)
        self._swaps.clear()

    def _end(self, request: Request, error: BaseException | None = None) -> None:
        """Remove a request and release its pages."""
        if error is not None:
            request.fail(error)
        self._scheduler.finish(request.sequence)
        if self._requests.pop(request.sequence, None) is None:
            return
        self._adapters.release(request.sequence.adapter)
        if request.finish_reason is not None:
            self._counts.finished.add(self.name, request.finish_reason)
            self._counts.whole.observe(time.monotonic() - request.started, self.name)

    # -- steps -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._run_steps()
        except asyncio.CancelledError:
            state = "the generator is closed" if self._is_closed else "the event loop of the request has ended"
            self._fail_all(EngineError(state))
            raise
        except Exception as error:  # whatever failed: otherwise the readers would wait for ever
            self._fail_all(error)
            raise

    async def _run_steps(self) -> None:
        while True:
            self._wakeup.clear()
            self._apply_swaps()
            step = self._scheduler.schedule()
            for request in [each for each in self._requests.values() if each.sequence.finished]:
                self._end(request)  # cancelled
            self._update_gauges()
            if step is not None:
                await self._compute(step)
            elif self._swaps and not self._scheduler.running:
                continue  # a drain is complete
            elif not self._requests and not self._swaps:
                return  # the next request starts another task
            else:
                await self._wakeup.wait()

    async def _compute(self, step: Step) -> None:
        """Compute a step, and pass each request its tokens."""
        version = self.version
        try:
            for copy in step.copies:
                self.decoder.copy_page(*copy)
            is_new, start = self._is_new(step.batch), time.perf_counter()
            logits = await (await self._push(step.batch, is_new))
            if not is_new:
                self._scheduler.times.record(len(step.batch.tokens), time.perf_counter() - start)
            rows: Floats = logits.asnumpy()
        except Exception as error:  # the model may raise anything; other requests go on
            self._recover(step, error)
            return
        if rows.size > _LARGE or any(self._has_constraint(part) for part in step.parts):
            results = await asyncio.to_thread(self._choose, step.parts, rows)
        else:
            results = self._choose(step.parts, rows)
        for part, result in zip(step.parts, results, strict=True):
            self._deliver(part, result, version)

    def _is_new(self, batch: StepBatch) -> bool:
        """Return whether pushing a step takes long."""
        is_new = getattr(self.decoder, "is_new", None)
        return is_new is not None and bool(is_new(batch))

    async def _push(self, batch: StepBatch, is_new: bool) -> NDArray:
        """Push a step; one that compiles a graph is pushed on another thread, so that the event loop is not blocked."""
        async with self._pushing:
            return await asyncio.to_thread(self.decoder.step, batch) if is_new else self.decoder.step(batch)

    def _has_constraint(self, part: Part) -> bool:
        request = self._requests.get(part.sequence)
        return request is not None and request.sampler.constraint is not None

    def _recover(self, step: Step, error: Exception) -> None:
        """Fail the requests of a step; the others are computed again, because the cache may be damaged."""
        for part in step.parts:
            self._end(self._requests[part.sequence], error)
        self._clear_cache()

    def _clear_cache(self) -> None:
        """Erase the cache; running requests compute their keys and values again."""
        self.decoder.clear()
        self._scheduler.reset()

    def _choose(self, parts: Sequence[Part], rows: Floats) -> list[list[Choice] | Exception]:
        """Return the tokens of each part of a step, or the error of its sampler."""
        results: list[list[Choice] | Exception] = []
        for part in parts:
            try:
                results.append(self._choose_tokens(part, rows))
            except Exception as error:  # NaN, or a bias or prompt with a token that does not exist
                results.append(error)
        return results

    def _choose_tokens(self, part: Part, rows: Floats) -> list[Choice]:
        """Return the tokens that follow: one for each correct draft, and the next."""
        request, sequence = self._requests.get(part.sequence), part.sequence
        choices: list[Choice] = []
        if request is None:
            return choices
        text = sequence.tokens[sequence.prompt_length :]
        drafts = part.tokens[len(part.tokens) - part.rows + 1 :] if part.rows else ()
        for row in range(part.rows):
            choices.append(request.sampler.choose(rows[part.first_row + row], text))
            if row == len(drafts) or choices[-1].number != drafts[row]:
                break
            text = [*text, choices[-1].number]
        return choices

    def _deliver(self, part: Part, result: list[Choice] | Exception, version: int) -> None:
        request = self._requests.get(part.sequence)
        if request is None:
            return
        if isinstance(result, Exception):
            self._end(request, result)
            return
        accepted: list[int] = []
        for choice in result:
            if request.has_ended:
                break
            self._observe(request)
            request.add(choice, version)
            accepted.append(choice.number)
        self._scheduler.complete(part, accepted)
        if request.has_ended:
            self._end(request)
        else:
            part.sequence.drafts = request.next_drafts()

    # -- weights and metrics ---------------------------------------------------------------------------

    def _apply_swaps(self) -> None:
        """Replace the weights, if a swap is due."""
        while self._swaps:
            parameters, policy, future = self._swaps[0]
            if future.cancelled():
                del self._swaps[0]
                continue
            self._scheduler.admitting = policy != "drain" or not self._scheduler.running
            if not self._scheduler.admitting:
                return
            del self._swaps[0]
            try:
                if parameters is not None:
                    self.decoder.set_parameters(parameters)
            except Exception as error:  # names or shapes that do not fit
                if not future.done():
                    future.set_exception(error)
                continue
            self.version += 1
            root = str(self.version).encode()
            if policy == "recompute":
                self._scheduler.reset(root)
            else:
                self._scheduler.pool.forget(root)
            if not future.done():
                future.set_result(self.version)
        self._scheduler.admitting = True

    def _observe(self, request: Request) -> None:
        """Measure a token."""
        now = time.monotonic()
        self._counts.generated_tokens.add(self.name)
        if request.latest is None:
            self._counts.first_token.observe(now - request.started, self.name)
        else:
            self._counts.next_token.observe(now - request.latest, self.name)

    def _update_gauges(self) -> None:
        scheduler, counts = self._scheduler, self._counts
        counts.running.set(scheduler.running, self.name)
        counts.waiting.set(scheduler.waiting, self.name)
        counts.cache.set(scheduler.pool.used / scheduler.pool.count, self.name)
        for name, count in self._adapters.uses().items():
            counts.adapters.set(count, self.name, name)
        if scheduler.preemptions > self._preemptions:
            counts.preemptions.add(self.name, by=scheduler.preemptions - self._preemptions)
            self._preemptions = scheduler.preemptions
