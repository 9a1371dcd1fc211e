"""The report in a real browser: nothing overflows and every part is painted, narrow and wide, by day and by night."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixmatch.report import write_report

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
QUIET = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def browse(profile: Path, *options: str) -> str:
    """Run the browser on a page, in a profile of its own."""
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", *QUIET, "--hide-scrollbars"]
    where = {**os.environ, "HOME": str(profile), "XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)}
    done = subprocess.run(
        [*command, f"--user-data-dir={profile}", *options],
        capture_output=True, text=True, timeout=120, check=True, env=where,
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize(("scheme", "number"), [("dark", 0), ("light", 1)])
def test_painted(digits_run: Path, tmp_path: Path, width: int, scheme: str, number: int) -> None:
    _, page, _ = write_report(digits_run, tmp_path / "report.html", device="cpu")
    shot = tmp_path / "shot.png"
    look = f"--blink-settings=preferredColorScheme={number}"
    browse(tmp_path / "profile", look, f"--window-size={width},2000", f"--screenshot={shot}", page.as_uri())
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("L"), np.float64)
    assert pixels.shape == (2000, width)
    paper = np.median(pixels)
    assert (paper < 60) if scheme == "dark" else (paper > 200)
    bands = np.abs(pixels - paper).reshape(10, 200, width).max(axis=(1, 2))
    assert (bands > 100).all()  # something to read in every part of it


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
@pytest.mark.parametrize("which", ["digits", "user"])
@pytest.mark.parametrize("width", [360, 400, 1400])
def test_nothing_overflows(digits_run: Path, user_run: Path, tmp_path: Path, width: int, which: str) -> None:
    _, page, _ = write_report(digits_run if which == "digits" else user_run, tmp_path / "report.html", device="cpu")
    inside = page.read_text(encoding="utf-8").replace("&", "&amp;").replace('"', "&quot;")
    outer = tmp_path / "outer.html"
    measured = "const d = f.contentDocument.documentElement; document.title = `${d.clientWidth} ${d.scrollWidth}`"
    outer.write_text(
        '<!DOCTYPE html><meta charset="utf-8"><title>?</title><body>'
        f"<script>function measure(f) {{ {measured} }}</script>"
        f'<iframe onload="measure(this)" style="width:{width}px;height:3000px;border:0" srcdoc="{inside}"></iframe>',
        encoding="utf-8",
    )
    seen = browse(tmp_path / "profile", "--window-size=1600,3200", "--dump-dom", outer.as_uri())
    sizes = re.search(r"<title>(\d+) (\d+)</title>", seen)
    assert sizes is not None
    assert sizes.groups() == (str(width), str(width))  # nothing to scroll sideways
