"""Names of files and classes reach people as text: a terminal gets no escape code that we did not write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from terminals import Terminal

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


def test_classes_of_a_published_data_set_whose_names_a_file_gives(tmp_path: Path, call: Call) -> None:
    """Neither escape codes nor what rich takes for markup."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    records = np.zeros((20, 3073), np.uint8)
    records[:, 0] = np.arange(20) % 10
    for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(records.tobytes())
    names = [TITLE, "[/a]", "[red]b", *"cdefghi"]
    (folder / "batches.meta.txt").write_text("\n".join(names))
    result = call("data", "check", "cifar10", "--data-dir", tmp_path, "--no-download")
    harmless(result, r"\x1b]0;owned\x07", "[/a]", "[red]b")
    assert result.code == 0


def test_errors_and_warnings_in_python(photos: Path, trained: Path) -> None:
    with pytest.raises(MixMatchError) as raised:
        mixmatch.load(f"nowhere{TITLE}\nhere")
    assert r"nowhere\x1b]0;owned\x07\nhere" in str(raised.value)
    with pytest.warns(UserWarning, match="cannot read") as warned:
        list(mixmatch.predict_files(trained, photos / CAT, device="cpu"))
    assert TITLE not in str(warned[0].message)


def test_a_terminal(photos: Path, trained: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings and predictions, where rich writes escape codes of its own. Programs get names as they are."""
    monkeypatch.setenv("TERM", "xterm")
    for command in (("data", "check", photos, "--no-trial"), ("predict", trained, photos / CAT)):
        terminal = Terminal()
        with os.fdopen(os.dup(terminal.end), "w") as stream:
            call(*command, stream=stream)
        seen = terminal.read()
        assert r"\x1b]0;owned" in seen
        for code in HOSTILE[:3]:
            assert code not in seen
    assert f"{CAT}/0{TITLE}{BIDI}\x9b.png" in call("predict", trained, photos / CAT).out


def test_other_scripts_stay(tmp_path: Path, photos: Path, call: Call) -> None:
    folder = tmp_path / "фото 日本 👨‍👩‍👧"
    shutil.copytree(photos / "unlabeled", folder / "naïve")
    assert f"{folder.name} has no labeled" not in call("data", "check", folder).out
    assert folder.name in call("data", "check", folder).err
