"""A server of the labeling page in a process of its own, and a browser that keeps an eye on what the page does."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

REQUIRED = os.environ.get("MIXMATCH_BROWSER") == "required"
BROWSER = next((found for b in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(b))), None)
EVIL = "evil.test"
"""A name that leads to this machine, as whoever owns it can have it."""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
]  # fmt: skip


def need_browser() -> None:
    """Skip where there is no browser to drive, but not where one was promised."""
    missing = "there is no chromium" if BROWSER is None else None
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        missing = "playwright is not installed"
    if missing:
        (pytest.fail if REQUIRED else pytest.skip)(missing)


def digits(folder: Path, each: int, classes: tuple[int, ...] = (0, 1), side: int = 32) -> Path:
    """A flat folder of handwritten digits, `each` of every class, mixed; the class is the first letter of the name."""
    from sklearn.datasets import load_digits

    data = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    for c in classes:
        for i, pixels in enumerate(data.images[data.target == c][:each]):
            image = Image.fromarray((255 - 15.9 * pixels).astype("uint8")).resize((side, side))
            image.save(folder / f"{i:03d}-{'abcdefghij'[c]}.png")
    return folder


class Server:
    """`mixmatch label FOLDER`, to be stopped, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "mixmatch", "label", str(self.folder), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line):
                self.address = found[0]
                return self.wait()
        raise AssertionError(f"the server did not start: {''.join(said)}")

    def wait(self) -> None:
        """Until it answers: the address is printed a moment earlier."""
        port = int(self.address.split("/")[2].split(":")[1])
        for _ in range(100):
            try:
                return socket.create_connection(("127.0.0.1", port), 5).close()
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # Ctrl-C
        self.process.communicate(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)

    def labels(self) -> dict[str, str]:
        """What is on the disk, as another program reads it: stops the server."""
        self.stop()
        with (self.folder / ".mixmatch-labels" / "labels.csv").open(encoding="utf-8", newline="") as file:
            return {row["file"]: row["label"] for row in csv.DictReader(file)}


class Watched:
    """A page that remembers errors and where its requests went."""

    def __init__(self, context: Any, address: str) -> None:
        self.page = context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.set_default_timeout(60_000)  # bounds failures alone: a busy machine is slow
        self.page.goto(address)

    def check(self, *expected: str) -> None:
        """Nothing went wrong in the page but what is expected, and it spoke to this machine alone."""
        odd = [e for e in self.errors if not any(text in e for text in expected)]
        assert not odd, odd
        assert all(re.match(r"http://127\.0\.0\.1:\d+/|blob:", url) for url in self.requests), self.requests
