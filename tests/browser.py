"""A real browser for tests: Chromium without a window, driven by its DevTools protocol over two pipes.

Nothing but the browser itself is needed. Tests that use it skip where none is installed.
"""

import base64
import contextlib
import fcntl
import io
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def executable() -> str:
    """The path of a browser; without one the test is skipped."""
    given = os.environ.get("REPGRAPH_BROWSER")
    found = given or next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found:
        pytest.skip("no browser: install chromium, or name one in REPGRAPH_BROWSER")
    return found


@contextlib.contextmanager
def browser(limit: float = 60) -> Iterator["Page"]:
    """One page of a new browser, which is ended afterwards with all of its processes."""
    path = executable()
    with tempfile.TemporaryDirectory(prefix="repgraph-browser-", ignore_cleanup_errors=True) as folder:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads descriptor 3 and writes 4: away from these first, so that none is overwritten.
        high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 20) for number in (theirs_in, theirs_out)]
        null = os.open(os.devnull, os.O_RDWR)
        moves = [(os.POSIX_SPAWN_DUP2, a, b) for a, b in ((null, 0), (null, 1), (null, 2), (high[0], 3), (high[1], 4))]
        arguments = [path, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        process = os.posix_spawn(path, arguments, {**os.environ, "HOME": folder}, file_actions=moves, setpgroup=0)
        for number in (theirs_in, theirs_out, *high, null):
            os.close(number)
        try:
            yield Page(ours_in, ours_out, limit)
        finally:
            for number in (ours_in, ours_out):
                os.close(number)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


class Page:
    """A page; what goes wrong in it (``errors``) and all that it asks for (``requests``) is kept."""

    def __init__(self, read: int, write: int, limit: float) -> None:
        self.read, self.write, self.limit = read, write, limit
        self.buffer, self.count, self.session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.happened: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next()
            if answer.get("id") == self.count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def next(self) -> dict[str, Any]:
        """The next message of the browser; what happened in the page is noted."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], self.limit)
            part = os.read(self.read, 2**20) if ready else b""
            assert part, "the browser says nothing more"
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        about = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.errors.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.errors.append(str(about["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
        self.happened.append(message.get("method", ""))
        return message

    def open(self, path: Path) -> "Page":
        self.happened.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.happened:
            self.next()
        return self.settle()

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def settle(self) -> "Page":
        """Wait until what was asked for is drawn."""
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
        self.evaluate(frames)
        return self

    def size(self, width: int, height: int, *, phone: bool = False) -> "Page":
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        return self.settle()

    def dark(self, dark: bool) -> "Page":
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        return self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> "Page":
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        return self.settle()

    def move(self, x: float, y: float) -> "Page":
        return self.mouse("mouseMoved", x, y)

    def click(self, x: float, y: float) -> "Page":
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        return self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> "Page":
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        return self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def wheel(self, x: float, y: float, down: float) -> "Page":
        return self.mouse("mouseWheel", x, y, deltaX=0, deltaY=down)

    def touch(self, kind: str, *points: tuple[float, float]) -> "Page":
        places = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=places)
        return self.settle()

    def key(self, key: str, shift: bool = False) -> "Page":
        given: dict[str, Any] = dict(key=key, modifiers=8 if shift else 0)
        if key in KEYS:
            given |= dict(windowsVirtualKeyCode=KEYS[key], code=key)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", **given, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)
        return self.settle()

    def pixel(self, x: float, y: float) -> tuple[int, int, int]:
        """The colour that one sees at a place of the screen."""
        clip = {"x": int(x), "y": int(y), "width": 1, "height": 1, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        with Image.open(io.BytesIO(base64.b64decode(shot))) as image:
            red, green, blue = image.convert("RGB").getpixel((0, 0))
        return red, green, blue

    def screenshot(self, path: Path) -> Path:
        time.sleep(0.1)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path
