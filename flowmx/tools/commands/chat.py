"""``python -m flowmx chat MODEL``: chat with a language model in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence

from flowmx import generation
from flowmx.engine import run as run_coroutine
from flowmx.tools import usage

__all__ = ["main"]

_NEW = "/new"
"""The line that begins another chat."""


def main(argv: Sequence[str]) -> int:
    """Chat until the end of the input; return the exit status."""
    parser = usage.parser(
        "chat", "Chat with a language model. /new begins another chat; Ctrl-C stops an answer; Ctrl-D ends.",
        ["SmolLM2-135M-Instruct.Q4_1.gguf", 'model.gguf "What is a tensor?" --temperature 0'],
    )  # fmt: skip
    parser.add_argument("model", help="a GGUF file, or a folder of Hugging Face's Transformers")
    parser.add_argument("message", nargs="?", help="one message: print the answer and end")
    parser.add_argument("--system", metavar="TEXT", help="instructions for the model")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 for the most probable words (default: 0.7)")
    parser.add_argument("--top-p", type=float, default=0.95, help="fraction of the probability (default: 0.95)")
    parser.add_argument("--max-tokens", type=int, help="maximum length of an answer (default: that of the model)")
    parser.add_argument("--seed", type=int, help="repeat an answer exactly")
    options = parser.parse_args(argv)
    status: int = run_coroutine(_chat(options))
    return status


async def _chat(options: Namespace) -> int:
    async with generation.load(options.model) as generator:
        if generator.template is None:
            sys.stderr.write("the model has no chat template: it continues each message as a text\n")
        if options.message is not None:
            await _answer(generator, _chat_of(options, options.message), options)
            return 0
        messages = _chat_of(options)
        while (text := await asyncio.to_thread(_read)) is not None:
            if text == _NEW:
                messages = _chat_of(options)
            elif text:
                messages.append({"role": "user", "content": text})
                messages.append({"role": "assistant", "content": await _answer(generator, messages, options)})
    return 0


def _chat_of(options: Namespace, text: str | None = None) -> list[dict[str, str]]:
    """Return the messages of a new chat."""
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return [*system, *([] if text is None else [{"role": "user", "content": text}])]


def _read() -> str | None:
    """Return the next line of the input, or None at its end."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


async def _answer(generator: generation.Generator, messages: Sequence[dict[str, str]], options: Namespace) -> str:
    """Print an answer as it comes, and return it."""
    prompt = messages if generator.template is not None else messages[-1]["content"]
    running = generator(
        prompt, max_tokens=options.max_tokens, temperature=options.temperature, top_p=options.top_p, seed=options.seed
    )
    parts = []
    with _stopped_by_interrupt(running):
        async for token in running:
            parts.append(token.text)
            _write(token.text)
    _write("\n")
    return "".join(parts)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextlib.contextmanager
def _stopped_by_interrupt(running: generation.Generation) -> Iterator[None]:
    """Stop a generation, not the program, on Ctrl-C, where signal handlers can be set."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, running.cancel)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
