"""The fuzzer: sends blocks of requests, checks the answers and the state afterwards, and shrinks failing blocks.

``python -m tests.fuzz.run [seconds] [seed]`` runs it by itself.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flowmx.comm.client import Peer
from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message, Tensor, encode
from flowmx.comm.security import Security
from tests.fuzz.cases import Action, Block
from tests.fuzz.sending import Sender
from tests.fuzz.target import SECRET, WORKERS

__all__ = ["GROWTH", "Found", "Report", "fuzz"]

ROOT = Path(__file__).parent.parent.parent
GROWTH = 50 << 20
KINDS = ["client without the secret", "outsider", "member", "member", "member"]
AT_ONCE = 6
STEADY = 0.2  # fraction of the time after which memory must not grow
STATUSES = {0, 200, 400, 401, 404, 405, 408, 409, 411, 413, 415, 417, 431, 503}
ATTEMPTS = 40  # runs that try to shrink a conversation


class Found(Exception):
    """A fault of the endpoints.

    Attributes:
        what: a description.
        actions: the conversation that causes it; empty if unknown.
    """

    def __init__(self, what, actions=()):
        super().__init__(what)
        self.what, self.actions = what, list(actions)


@dataclass
class Report:
    """The statistics of a run.

    Attributes:
        seed: the seed of the run.
        requests: the number of requests.
        statuses: the number of answers of each status.
        growth: the growth of the endpoints' process in bytes, from the steady state to the end.
    """

    seed: int
    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    growth: int = 0


class Target:
    """The process of the endpoints."""

    def __init__(self, process):
        self.process = process
        self.errors = []
        self.endpoints = {}
        self._reading = asyncio.create_task(self._read_errors())

    @classmethod
    @asynccontextmanager
    async def start(cls, fault=""):
        command = [sys.executable, "-m", "tests.fuzz.target", *([fault] if fault else [])]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, limit=1 << 20,
        )  # fmt: skip
        target = cls(process)
        try:
            target.endpoints = json.loads(await process.stdout.readline() or "{}")
            yield target
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await target._reading

    async def ask(self, command):
        """Send a command to the process and return its answer.

        Raises:
            Found: the process has ended or does not answer.
        """
        try:
            async with asyncio.timeout(30):
                self.process.stdin.write(command.encode() + b"\n")
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise Found(f"the process did not answer {command!r} within 30 s") from None
        except OSError:
            line = b""
        if not line:
            raise Found(f"the process has ended with status {await self.process.wait()}: {self._last_words()}")
        return json.loads(line)

    def check(self):
        """Raise an error if the output of the process shows a defect."""
        text = "".join(self.errors)
        self.errors.clear()
        if "Traceback" in text or "was never" in text:
            raise Found(f"the log has an exception: {text[-1500:]}")

    async def _read_errors(self):
        while line := await self.process.stderr.readline():
            self.errors.append(line.decode(errors="replace"))

    def _last_words(self):
        return "".join(self.errors)[-1500:]


class Fuzzer:
    """A run of the fuzzer against one process."""

    def __init__(self, target, report):
        self.target, self.report = target, report
        self.genuine = {}

    async def block(self, block):
        """Send a block's conversations to endpoints with a new job.

        Raises:
            Found: an answer or the state afterwards is wrong.
        """
        await self.target.ask("renew")
        await self._prepare()
        guarded = {"client without the secret": {"scheduler", "app", "servers"}, "outsider": {"servers"}}.get(
            block.kind, set()
        )
        before = await self.target.ask("digests")
        await self._converse(block)
        await self._sane()
        self.target.check()
        after = await self.target.ask("digests")
        for name in guarded:
            if before[name] != after[name]:
                raise Found(f"a {block.kind} has changed what the {name} holds: {before[name]} became {after[name]}")

    async def _converse(self, block):
        conversations = iter(block.conversations)

        async def some():
            for actions in conversations:
                await self.conversation(block.kind, actions)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(some())
        except* Found as found:
            raise found.exceptions[0] from None

    async def conversation(self, kind, actions):
        """Send some requests one after the other, and check each answer."""
        sender = Sender(self.target.endpoints, self.genuine)
        try:
            for done, action in enumerate(actions):
                answer = await sender.send(action)
                self.report.requests += 1
                self.report.statuses[answer.status] += 1
                wrong = _wrong(kind, action, answer)
                if wrong:
                    raise Found(wrong, actions[: done + 1])
        finally:
            await sender.close()

    async def _prepare(self):
        """Store values that a fault could change, and send requests that may be repeated."""
        for kind in ("signed", "open"):
            async with self._peer(f"{kind} server0", WORKERS[0]) as peer:
                parts = [[key, 0, 0] for key in ("w", "v", 3)]
                header = {"incarnation": 1, "turn": 1, "rank": 0, "joined": 1, "parts": parts}
                await peer.call("init", header, [_array()] * len(parts), timeout=10)
            async with self._peer(f"{kind} scheduler", WORKERS[0]) as peer:
                await peer.call("join", {"incarnation": 1, "role": "worker"}, timeout=10)
        sender = Sender(self.target.endpoints, self.genuine)
        for where, operation in (("app", "add"), ("scheduler", "view"), ("server0", "stats")):
            body = b"".join(encode(Message({"node": "x"}, [])))
            await sender.send(Action(f"signed {where}", operation, body, "x", "record"))
        await sender.close()

    async def _sane(self):
        """Check that the endpoints still answer valid requests.

        Raises:
            Found: an endpoint does not.
        """
        for name in self.target.endpoints:
            try:
                async with self._peer(name, "sane") as peer:
                    operation = "echo" if name.endswith("app") else "view" if name.endswith("scheduler") else "stats"
                    await peer.call(operation, {}, timeout=10)
            except (Refused, OSError) as error:
                await self.target.ask("digests")  # raises if the process has ended
                raise Found(f"{name} does not serve any more: {type(error).__name__}: {error}") from None

    def _peer(self, name, node):
        port, path, _, signed = self.target.endpoints[name]
        security = Security(SECRET) if signed else None
        return Peer(f"http://127.0.0.1:{port}{path}", security=security, node=node, local=False)


def _array():
    return Tensor.of(np.ones(4, np.float32))


def _wrong(kind, action, answer):
    """Return the fault of an answer; empty if it is correct."""
    text = f"{answer.header.get('error', answer.header)!r:.300}"
    if answer.fault:
        return answer.fault
    if answer.status == -1:
        return f"no answer to {action.operation}, which never waits, within the time"
    if answer.status not in STATUSES:
        return f"status {answer.status}: {text}"
    signed = action.endpoint.startswith("signed")
    if signed and action.signature not in ("right", "record") and answer.status == 200:
        return f"{action.operation} was done though its signature is {action.signature}: {text}"
    if kind == "outsider" and answer.status == 200 and action.operation not in ("stats", "local"):
        return f"{action.operation} was done for {action.node!r}, which is no node of the job: {text}"
    return ""


async def fuzz(seconds=None, blocks=None, seed=None, fault="", growth=GROWTH, attempts=ATTEMPTS, say=lambda text: None):
    """Fuzz for some time, or for some blocks.

    Args:
        seconds: the duration of the run.
        blocks: the number of blocks, instead of a duration.
        seed: the seed, with which a run can be repeated; random by default.
        fault: a planted fault of the endpoints, for tests of the fuzzer.
        growth: the allowed growth of the process in bytes.
        attempts: the number of runs that try to shrink a failing conversation.
        say: called with progress messages.

    Returns:
        The statistics of the run.

    Raises:
        AssertionError: a fault was found; the message has the seed and a conversation that causes it.
    """
    seed = random.randrange(1 << 32) if seed is None else seed
    report, start, number, base = Report(seed), time.monotonic(), 0, None
    async with Target.start(fault) as target:
        fuzzer = Fuzzer(target, report)
        while True:
            block = Block(seed, number, KINDS[number % len(KINDS)])
            try:
                await fuzzer.block(block)
            except Found as found:
                raise AssertionError(await _explained(found, seed, number, block, fault, attempts)) from None
            number += 1
            share = (time.monotonic() - start) / seconds if seconds else number / blocks
            if base is None and share >= STEADY and number >= len(KINDS):  # each kind has allocated its buffers
                await target.ask("renew")
                base = await target.ask("measure")
            if number % 50 == 0:
                say(f"{share:.0%}: {number} blocks, {report.requests} requests, {report.statuses}")
            if share >= 1:
                break
        await target.ask("renew")
        report.growth = await target.ask("measure") - base
    if report.growth > growth:
        raise AssertionError(
            f"seed {seed}: the process grew by {report.growth >> 20} MiB over {report.requests} requests"
        )
    return report


async def _explained(actual, seed, number, block, fault, attempts):
    """Describe a finding, with the smallest conversation that reproduces it."""
    conversations = [actual.actions] if actual.actions else block.conversations
    actions, again = await _shrunk(block.kind, conversations, fault, attempts)
    listed = "\n".join(f"  {action!r:.900}" for action in actions) or "  (does not happen again by itself)"
    return f"{actual.what}\nseed {seed}, block {number} ({block.kind}); {again} leads to it:\n{listed}"


async def _shrunk(kind, conversations, fault, left):
    """Return conversations without unnecessary actions."""
    actions = [action for conversation in conversations for action in conversation]
    if not await _happens(kind, actions, fault):
        return (), "nothing that was tried alone"
    size = max(len(actions) // 2, 1)
    while left > 0:
        for start in range(0, len(actions), size):
            left -= 1
            fewer = actions[:start] + actions[start + size :]
            if fewer and left >= 0 and await _happens(kind, fewer, fault):
                actions = fewer
                break
        else:
            if size == 1:
                break
            size = max(size // 2, 1)
    return actions, "this"


async def _happens(kind, actions, fault):
    """Return whether new endpoints fail after these actions."""
    alone = Block("", 0, kind, size=0)
    alone.conversations = [actions]
    async with Target.start(fault) as target:
        try:
            await Fuzzer(target, Report(0)).block(alone)
        except Found:
            return True
    return False


if __name__ == "__main__":
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else None
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    print(asyncio.run(fuzz(seconds=seconds, seed=chosen, say=lambda text: print(text, flush=True))))
