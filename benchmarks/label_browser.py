"""How fast is the labeling page in a browser, with many pictures?

    python benchmarks/label_browser.py [--pictures 100000] [--json]

Makes a folder of that many small JPEGs, starts `mixmatch label` on it twice and drives the page in headless chromium
(Playwright; `pip install playwright`). "first page" is from the start of the command to the last picture in sight, the
browser being open already; "jump" from setting the scroll position to the same; "key" from the press to the frame that
shows the label, "work of a key" what of it the page itself takes; on a busy machine only the processor time means
something.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
GOALS = {"first page, first start": 1500, "first page, later": 500, "jump": 400, "key": 16}
"""Milliseconds that the page should stay below."""
PRESSED_EVERY = 50
"""Milliseconds from a key to the next: faster than a person labels."""

COMPLETE = """async () => {
  const start = performance.now();
  for (;;) {
    const seen = [...document.querySelectorAll('#grid .tile img')].filter((image) => {
      const box = image.getBoundingClientRect();
      return box.bottom > 0 && box.top < innerHeight;
    });
    if (seen.length > 8 && seen.every((image) => image.hasAttribute('src') && image.complete && image.naturalWidth)) {
      return performance.now() - start;
    }
    await new Promise(requestAnimationFrame);
  }
}"""
LISTEN = """() => {
  window.keys = [];
  document.addEventListener('keydown', () => {
    const start = performance.now(), after = new MessageChannel(), entry = {};
    after.port1.onmessage = () => (entry.work = performance.now() - start);
    after.port2.postMessage(0);
    requestAnimationFrame(() => {
      const painted = new MessageChannel();
      painted.port1.onmessage = () => ((entry.frame = performance.now() - start), window.keys.push(entry));
      painted.port2.postMessage(0);
    });
  }, { capture: true });
}"""
SCROLL = "share => { const grid = document.querySelector('#grid'); grid.scrollTop = share * grid.scrollHeight; }"
ADD = """name => fetch('/api/classes', {method: 'POST', headers: {'Content-Type': 'application/json'},
  body: JSON.stringify({id: 'benchmark-' + name, do: 'add', name})}).then((answer) => answer.ok)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=100, help="Keys to press.")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder) / "photos", args.pictures)
        rows = measure(Path(folder) / "photos", args.keys)
    if args.json:
        print(json.dumps({"cores": len(os.sched_getaffinity(0)), "pictures": args.pictures, "rows": rows}, indent=1))
        return
    table = Table("", "median", "worst", "goal", title=f"the page with {args.pictures:,} pictures, ms")
    for row in rows:
        goal = GOALS.get(row["what"])
        table.add_row(row["what"], f"{row['median']:,.1f}", f"{row['worst']:,.1f}", "" if goal is None else f"< {goal}")
    Console(width=100).print(table)


def measure(folder: Path, keys: int) -> list[dict[str, Any]]:
    """Rows of what was measured, each with its median and worst value."""
    from playwright.sync_api import sync_playwright

    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_context(viewport={"width": 1360, "height": 860}).new_page()
        page.set_default_timeout(120_000)
        for name in ("first page, first start", "first page, later"):
            start = time.perf_counter()
            server, address = serve(folder)
            try:
                page.goto(address)
                page.evaluate(COMPLETE)
                rows.append(row(name, [1000 * (time.perf_counter() - start)]))
                rows += reloaded(page)
                if name.endswith("later"):
                    rows += use(page, keys)
            finally:
                server.terminate()
                server.communicate(timeout=60)
        browser.close()
    return rows


def reloaded(page: Page) -> list[dict[str, Any]]:
    """The page anew from a server that knows the folder."""
    page.get_by_text(re.compile(r"\d pictures$")).first.wait_for()  # it has read the folder
    times = []
    for _ in range(3):
        start = time.perf_counter()
        page.reload()
        page.evaluate(COMPLETE)
        times.append(1000 * (time.perf_counter() - start))
    return [row("reload", times)]


def use(page: Page, keys: int) -> list[dict[str, Any]]:
    """Jumps and keys."""
    for name in ("one", "two"):
        assert page.evaluate(ADD, name)
    page.locator(".side [data-value='1']").wait_for()
    jumps = []
    for share in (0.5, 0.13, 0.87, 0.31, 0.69):
        page.evaluate(SCROLL, share)
        jumps.append(page.evaluate(COMPLETE))
    page.evaluate(SCROLL, 0)
    page.evaluate(COMPLETE)
    page.locator("#grid").focus()
    page.evaluate(LISTEN)
    processor = page.context.new_cdp_session(page)
    processor.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = main_thread_ms(processor)
    for i in range(keys):
        page.keyboard.press("12"[i % 2])
        page.wait_for_timeout(PRESSED_EVERY)  # else keys wait for those before them, which is not what a person sees
    page.locator("#saved[data-state=saved]").wait_for()
    used = main_thread_ms(processor) - before
    pressed = page.evaluate("window.keys")
    return [
        row("jump", jumps),
        row("key", [each["frame"] for each in pressed]),
        row("work of a key", [each["work"] for each in pressed]),
        row("processor time of a key, its answer included", [used / keys]),
        row("nodes in the grid", [page.evaluate("document.querySelectorAll('#grid *').length")]),
        row("memory of the page, MB", [page.evaluate("performance.memory.usedJSHeapSize / 1e6")]),
    ]


def main_thread_ms(processor: CDPSession) -> float:
    """Processor time that the page's main thread has used."""
    metrics = {each["name"]: each["value"] for each in processor.send("Performance.getMetrics")["metrics"]}
    return 1000 * float(metrics["TaskDuration"])


def row(what: str, values: list[float]) -> dict[str, Any]:
    return {"what": what, "median": statistics.median(values), "worst": max(values), "count": len(values)}


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


def serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "mixmatch", "label", str(folder), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line):
            return server, found[0]
    raise SystemExit("mixmatch label did not start")


def write_pictures(folder: Path, count: int) -> None:
    """Small JPEGs, a hundred different ones under many names, 5,000 in a folder."""
    random = np.random.default_rng(0)
    folder.mkdir()
    contents = []
    for i in range(100):
        shapes = Image.fromarray(random.integers(0, 256, (4, 5, 3), np.uint8))
        shapes.resize((160, 120), Image.Resampling.BICUBIC).save(folder / "one.jpg", quality=88)
        contents.append((folder / "one.jpg").rename(folder / f".{i}.jpg"))
    for i in range(count):
        part = folder / f"{i // 5000:03}"
        part.mkdir(exist_ok=True)
        os.link(contents[i % 100], part / f"{i:06}.jpg")


if __name__ == "__main__":
    main()
