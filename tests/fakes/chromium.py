"""Debian's Chromium without a window, driven through a pipe by the DevTools protocol: nothing listens, nothing is installed."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "no chromium here; `apt-get install chromium` brings it"


class Browser:
    """A browser with one tab. Use it in a `with`.

    Attributes:
        asked: Addresses of all requests that it has made.
        errors: What the console and the security policy complained of.
    """

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="parl-like-chromium-")
        (theirs_in, self.out), (self.into, theirs_out) = os.pipe(), os.pipe()

        def prepare():
            os.dup2(theirs_in, 1000)
            os.dup2(theirs_out, 1001)
            os.dup2(1000, 3)
            os.dup2(1001, 4)

        words = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-extensions",
            "--disable-component-update",
            "--mute-audio",
            "--hide-scrollbars",
            "--disable-features=Translate,MediaRouter,OptimizationHints",
            f"--user-data-dir={self.folder}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [PROGRAM, *words],
            preexec_fn=prepare,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.numbers, self.buffer, self.session = itertools.count(1), b"", None
        self.asked, self.errors = [], []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, timeout=60.0, **parameters):
        """The result of a command."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": self.session} if self.session else {})}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + timeout
        while True:
            answer = self._message(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self, until):
        while b"\0" not in self.buffer:
            if not select.select([self.into], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.into, 1 << 20)
            if not piece:
                raise OSError("the browser has ended")
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        kind, what = message.get("method"), message.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.asked.append(what["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(
                what["exceptionDetails"].get("exception", {}).get("description") or what["exceptionDetails"]["text"]
            )
        elif kind == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")
        return message

    def size(self, width, height, scale=1, dark=False):
        """The window's size in pixels, and what the system's colours are."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, address, until="document.documentElement.dataset.whole === 'true'"):
        """Goes to a page, and waits until an expression of it is true."""
        self.call("Page.navigate", url=address)
        self.wait(until)

    def evaluate(self, expression):
        """The value of an expression of the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "error"))
        return answer["result"].get("value")

    def wait(self, expression, timeout=30.0):
        """Until an expression of the page is true."""
        until = time.monotonic() + timeout
        while True:
            try:
                if self.evaluate(f"Boolean({expression})"):
                    return
            except RuntimeError:
                pass  # the page is just changing
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {expression}; errors: {self.errors}")
            time.sleep(0.03)

    def key(self, name, code=None, text="", modifiers=0):
        """Presses a key."""
        keys = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        number = code or keys.get(name, ord(name[0].upper()))
        text = text or {"Enter": "\r", " ": " "}.get(name, name if len(name) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                windowsVirtualKeyCode=number,
                modifiers=modifiers,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def picture(self, path=None, height=None, clip=None):
        """A PNG of the window, or of a part (x, y, width, height)."""
        more = {} if clip is None else {"clip": {**dict(zip(("x", "y", "width", "height"), clip, strict=True)), "scale": 1}}
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **more)["data"])
        if path is not None:
            path.write_bytes(data)
        return data
