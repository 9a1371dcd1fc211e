"""Names of files and classes reach people as text: a terminal gets no escape code that we did not write."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mixmatch
from mixmatch.errors import MixMatchError
from mixmatch.training.progress import Quiet

Call = Callable[..., Any]
TITLE = "\x1b]0;owned\x07"
"""Sets a window's title, which no command does by itself."""
BIDI = "\u202e"
HOSTILE = (TITLE, BIDI, "\x9b", "\x08")
CAT, DOG = f"cat{TITLE}", f"dog{BIDI}\x08"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("photos") / f"my{TITLE}", np.random.default_rng(0)
    for where, light in ((CAT, 40), (DOG, 200), ("unlabeled", 120), (f"test/{CAT}", 40), (f"test/{DOG}", 200)):
        (folder / where).mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(light - 30, light + 30, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / where / f"{number}{TITLE}{BIDI}\x9b.png")
    (folder / CAT / f"damaged{TITLE}.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / f"run{TITLE}"
    with pytest.warns(UserWarning, match=r"damaged\\x1b\]0;owned\\x07.png"):
        mixmatch.train(photos, steps=2, baseline=False, out=out, device="cpu", reporter=Quiet())
    return out


def harmless(result: Any, *shown: str) -> None:
    for code in HOSTILE:
        assert code not in result.out + result.err
    for text in shown:
        assert text in result.out + result.err


def test_what_commands_say(photos: Path, trained: Path, call: Call) -> None:
    harmless(call("evaluate", trained, photos), r"cat\x1b]0;owned", r"dog\u202e")
    harmless(call("report", trained), r"report: ", r"run\x1b]0;owned\x07/report.html")
    harmless(call("export", trained, "--format", "safetensors"), "wrote ")
    harmless(call("train", photos / f"nowhere{TITLE}\nerror: "), r"owned\x07\nerror: ")
    harmless(call("train", photos, f"--{TITLE}"), "No such option")
    os.mkdir(f"empty{TITLE}")  # noqa: PTH102
    harmless(call("data", "check", f"empty{TITLE}"), r"empty\x1b]0;owned")


def test_errors_and_warnings_in_python(photos: Path, trained: Path) -> None:
    with pytest.raises(MixMatchError) as raised:
        mixmatch.load(f"nowhere{TITLE}\nhere")
    assert r"nowhere\x1b]0;owned\x07\nhere" in str(raised.value)
    with pytest.warns(UserWarning, match="cannot read") as warned:
        list(mixmatch.predict_files(trained, photos / CAT, device="cpu"))
    assert TITLE not in str(warned[0].message)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal(photos: Path, trained: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings and predictions, where rich writes escape codes of its own. Programs get names as they are."""
    monkeypatch.setenv("TERM", "xterm")
    for command in (("data", "check", photos, "--no-trial"), ("predict", trained, photos / CAT)):
        with on_terminal(monkeypatch) as seen:
            call(*command)
        assert r"\x1b]0;owned" in seen[0]
        for code in HOSTILE[:3]:
            assert code not in seen[0]
    assert f"{CAT}/0{TITLE}{BIDI}\x9b.png" in call("predict", trained, photos / CAT).out


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a terminal gets, once all is written."""
    import pty

    ours, theirs = pty.openpty()
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.append(_all_of(ours)))
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as terminal:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        yield seen
    reader.join(timeout=60)
    os.close(ours)


def _all_of(terminal: int) -> str:
    found = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other side is closed
            piece = b""
        if not piece:
            return found.decode()
        found += piece


def test_other_scripts_stay(tmp_path: Path, photos: Path, call: Call) -> None:
    folder = tmp_path / "фото 日本 👨‍👩‍👧"
    shutil.copytree(photos / "unlabeled", folder / "naïve")
    assert f"{folder.name} has no labeled" not in call("data", "check", folder).out
    assert folder.name in call("data", "check", folder).err
