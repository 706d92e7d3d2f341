"""A headless Chromium, driven through its DevTools protocol: pages, their content, and screenshots."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--no-first-run",
    "--no-default-browser-check", "--mute-audio", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip
PATIENCE = 30.0


def path() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return next((executable for name in NAMES if (executable := shutil.which(name))), None)


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser with an empty profile."""
    program = path()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program, *FLAGS, f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            address = await asyncio.wait_for(_address(process), PATIENCE)
            drained = asyncio.create_task(_drain(process))
            async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as line:
                instance = Browser(line)
                try:
                    yield instance
                finally:
                    await instance.close()
                    drained.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    output = []
    while text := (await process.stderr.readline()).decode(errors="replace"):
        output.append(text)
        if "DevTools listening on " in text:
            return text.partition("DevTools listening on ")[2].strip()
    raise RuntimeError(f"chromium ended: {''.join(output)}")


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while await process.stderr.readline():
        pass


class Browser:
    """The connection to a browser, which opens pages."""

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self._line = line
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        number = self._number
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        await self._line.send_json(message if session is None else {**message, "sessionId": session})
        return await asyncio.wait_for(future, PATIENCE)

    async def _read(self) -> None:
        async for message in self._line:
            document = json.loads(message.data)
            if "id" in document:
                future = self._answers.pop(document["id"])
                if future.done():
                    continue
                if "error" in document:
                    future.set_exception(RuntimeError(document["error"]["message"]))
                else:
                    future.set_result(document["result"])
            elif document.get("sessionId") in self._pages:
                self._pages[document["sessionId"]].receive(document["method"], document["params"])

    @contextlib.asynccontextmanager
    async def page(self, url: str, width: int = 1280, height: int = 900, **media: str) -> AsyncIterator[Page]:
        """Open a page, wait until it is loaded, and close it at the end.

        Args:
            url: the address.
            width: the width of the window in CSS pixels.
            height: the height of the window in CSS pixels.
            media: features such as ``prefers_color_scheme="dark"``.
        """
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.resize(width, height)
        await page.prefer(**media)
        await page.call("Page.navigate", url=url)
        await page.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")
        try:
            yield page
        finally:
            del self._pages[session]
            await self.call("Target.closeTarget", targetId=target)

    async def close(self) -> None:
        """Stop reading messages."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


class Page:
    """A page.

    Attributes:
        errors: logged errors, and uncaught exceptions.
        requests: the requested addresses.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol on the page."""
        return await self._browser.call(method, self._session, **params)

    def receive(self, event: str, params: dict[str, Any]) -> None:
        """Record an event of the page."""
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str([each.get("value") for each in params["args"]]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    async def resize(self, width: int, height: int, mobile: bool = False) -> None:
        """Resize the window."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    async def prefer(self, **media: str) -> None:
        """Set features such as ``prefers_color_scheme="dark"``."""
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description"))
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true, and return its value."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not (value := await self._tried(expression)):
            if loop.time() > end:
                text = await self.evaluate("document.body.innerText")
                raise AssertionError(f"not within {seconds} s: {expression}\n{text}\n{self.errors}")
            await asyncio.sleep(0.02)
        return value

    async def _tried(self, expression: str) -> Any:
        """Return the value of an expression, or None if it fails, such as while the page is loading."""
        try:
            return await self.evaluate(expression)
        except RuntimeError:
            return None

    async def picture(self, whole: bool = True) -> bytes:
        """Return a screenshot as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])


def brightness(png: bytes) -> tuple[float, float]:
    """Return the mean and the spread of an image's pixels, from 0 to 255; a blank page has no spread."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float)
    return float(pixels.mean()), float(pixels.std())
