"""A headless Chromium that opens pages of this project, over its DevTools pipe.

Chromium is Debian's: `apt-get install chromium`. Tests are skipped with the reason MISSING.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "")
MISSING = "" if CHROMIUM else "chromium is not installed: apt-get install chromium"
# Root has no sandbox in a container; /dev/shm may be small there.
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
OPTIONS += ["--no-first-run", "--hide-scrollbars", "--disable-background-networking"]
OPTIONS += ["--remote-debugging-pipe"]
COMMANDS = 3  # the file descriptors at which Chromium reads commands and writes answers
ANSWERS = 4


class Browser:
    """One page. `requests` are the addresses that the page has asked for, `errors` its messages."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        # A shell gives the pipes the numbers that Chromium expects.
        shell = f'exec "$@" {COMMANDS}<&{commands} {ANSWERS}>&{answers}'
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={self.folder.name}", "about:blank"]
        command = ["bash", "-c", shell, "bash", *command]
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(commands, answers), **options)
        os.close(commands)
        os.close(answers)
        self.stream = os.fdopen(self.answers, "rb")
        self.count = 0
        self.session = ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.loaded = False
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(info["targetId"] for info in targets if info["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """Ends Chromium and removes its profile."""
        self.send("Browser.close", of_page=False)
        self.process.wait(timeout=600)
        self.stream.close()
        os.close(self.commands)
        self.folder.cleanup()

    def send(self, method: str, of_page: bool = True, **parameters: Any) -> dict:
        """The result of a command of the DevTools protocol."""
        self.count += 1
        command = {"id": self.count, "method": method, "params": parameters}
        if self.session and of_page:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]

    def read(self) -> dict:
        """The next message. Events are noted."""
        data = bytearray()
        while (byte := self.stream.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            data += byte
        message = json.loads(data)
        values = message.get("params", {})
        event = message.get("method", "")
        self.loaded |= event == "Page.loadEventFired"
        if event == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"]))
        if event == "Log.entryAdded":
            self.errors.append(values["entry"]["text"])
        return message

    def open(self, page: Path) -> None:
        """Opens a file in a window of 1280 x 900 pixels, and waits until it is loaded."""
        self.requests.clear()
        self.errors.clear()
        metrics = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        self.loaded = False
        url = page.resolve().as_uri()
        self.send("Page.navigate", url=url)
        while not self.loaded:
            self.read()
        # The event may be of the page before.
        while self.run("document.readyState + ' ' + location.href") != f"complete {url}":
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in JavaScript."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")
