"""A real headless Chromium (Debian's package), driven through its own protocol over two pipes.

Source: Chrome DevTools Protocol; --remote-debugging-pipe: messages in JSON, each ends with NUL, in by descriptor 3 and
out by 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_PATIENCE = 120  # seconds for one answer: machines are shared
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--force-device-scale-factor=1", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page of one browser, with a profile of its own. `requests` are the addresses that the page asked for."""

    def __init__(self) -> None:
        program = shutil.which("chromium")
        assert program, "`make test-browser` installs chromium"
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        self.requests: list[str] = []
        self.loaded = False
        self.said: list[str] = []  # what it has against the page
        self._number = 0
        self._left = b""
        read, self._out = os.pipe()
        self._in, write = os.pipe()
        # Beyond 3 and 4, so that neither is in the way of the other when the shell gives them these numbers.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        os.close(read)
        os.close(write)
        script = f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *_OPTIONS, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": self._profile, "LANG": "C.UTF-8"},
        )  # fmt: skip
        for end in ends:
            os.close(end)
        self._session: str | None = None
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def look(self, *, width: int, height: int = 844, dark: bool = False, scripts: bool = True) -> None:
        """From now on pages are seen so."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, page: Path, query: str = "") -> None:
        self.requests.clear()
        self.said.clear()
        self.loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri() + query)
        while not self.loaded:
            self._handle(self._message())

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of its promise, on a page whose own scripts may be off."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}[key])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                found: dict[str, Any] = answer["result"]
                return found
            self._handle(answer)

    def _handle(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        elif event.get("method") == "Page.loadEventFired":
            self.loaded = True
        elif event.get("method") == "Log.entryAdded":
            self.said.append(event["params"]["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(event["params"]["exceptionDetails"]))

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], end - time.monotonic())
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._left += data
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
