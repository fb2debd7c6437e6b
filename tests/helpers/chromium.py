"""A page in headless Chromium, through the DevTools protocol over a pipe: no driver, no port, no other package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip


def find_chromium() -> str:
    """The browser's path; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium on this machine: apt-get install chromium")


class Page:
    """One tab.

    Args:
        profile: scratch folder.

    Attributes:
        requests: addresses that the page asked for.
        messages: what it wrote to the console, exceptions and what the browser logged about it.
    """

    def __init__(self, profile: Path):
        theirs, self._write = os.pipe()
        self._read, ours = os.pipe()
        # The browser reads from descriptor 3 and writes to 4: its ends must be neither before they become these.
        to_read, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, ours))
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        arguments = ["bash", "-c", command, find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            arguments, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in (theirs, ours, to_read, to_write):
            os.close(end)
        self._buffer, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        """A command and its answer; events that come before it are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path | str) -> None:
        """Loads a file or an address and waits until it is there."""
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        self.wait("document.readyState == 'complete'")

    def wait(self, script: str, seconds: float = 90):
        """Waits until an expression is true in the page; returns its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}; the page says {self.messages}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Clicks into the middle of an element, as a mouse does."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wheel(self, selector: str, down: float) -> None:
        """Turns the mouse wheel over an element."""
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=down)

    def press(self, *keys: str) -> None:
        """Presses keys one after the other, by their names (`Tab`, `ArrowUp`, `o`)."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for key in keys:
            text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            code = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
            self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def choose_files(self, selector: str, *files: Path) -> None:
        """What a person does in the dialogue of a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def drop_files(self, selector: str, *files: Path) -> None:
        """Drags files over an element and lets them go."""
        x, y = self._middle(selector)
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def _middle(self, selector: str) -> tuple[float, float]:
        box = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        return box[0], box[1]

    def run(self, script: str):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def look(self, width: int, dark: bool = False, height: int = 900) -> None:
        """Sets the window's width and the reader's colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self, path: Path) -> None:
        """The page as PDF, as a printer would have it."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def close(self) -> None:
        """Ends the browser."""
        self._session = None
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _next(self, timeout: float = 120) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], timeout)
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, "Chromium does not answer"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(str(params["args"]))
        elif message.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])
        return message
