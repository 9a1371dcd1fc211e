"""How fast is the server of `mixmatch label`, with 100,000 pictures?

    python benchmarks/label_page.py [--pictures 100000] [--json]

Writes a folder of that many files (links to a few JPEGs of 500 x 375 pixels, and some of 12 megapixels), starts
`mixmatch label` on it twice, and asks over HTTP as the page does. Times are by the clock unless they say CPU, which is
the server's own processor time and says more where other programs are at work; "per core" is per second of that of the
decoders. Where there is a browser to drive, what it shows comes last, from
label_browser.py, which has more.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import label_browser
import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from mixmatch.label.log import NAME, Log
from mixmatch.label.state import State

GOALS = {
    "first page, first start": "1.5 s",
    "first page, second start": "0.5 s",
    "label saved, median": "10 ms",
    "label saved, 99 %": "30 ms",
    "500 labels in one request": "50 ms",
    "replay of 100,000 events": "1 s",
    "server's memory": "150 MB",
    "thumbnails of 500 x 375, per core": "300/s",
    "thumbnails of 12 megapixels, per core": "25/s",
    "thumbnails kept in memory": "1500/s",
}
IN_BROWSER = {"first page, later": "0.5 s", "jump": "400 ms", "key": "16 ms"}
"""Rows of label_browser.py that are shown here too, and their goals."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", type=int, default=100_000, help="At least 20,000.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.pictures < 20_000:
        parser.error("--pictures must be at least 20,000")
    with tempfile.TemporaryDirectory() as place:
        rows = measure(Path(place), options.pictures)
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
        return
    table = Table("what", "measured", "goal")
    for row in rows:
        table.add_row(row["what"], row["measured"], row["goal"])
    Console().print(table)


def measure(place: Path, pictures: int) -> list[dict[str, str]]:
    found: dict[str, str] = {}
    folder = place / "photos"
    write_pictures(folder, pictures)
    began = time.perf_counter()
    with serving(folder) as server:
        found["first page, first start"] = f"{first_page(server) - began:.2f} s ({server.busy():.2f} s CPU)"
        while server.get("/api/state")["scanning"]:
            time.sleep(0.1)
        found["all pictures listed, first start"] = f"{time.perf_counter() - began:.2f} s"
        found |= saving(server, pictures)
        found |= thumbnails(server, pictures)
    began = time.perf_counter()
    with serving(folder) as server:
        found["first page, second start"] = f"{first_page(server) - began:.2f} s ({server.busy():.2f} s CPU)"
        found["all columns, gzip"] = columns(server)
        while server.get("/api/state")["scanning"]:
            time.sleep(0.1)
        server.get("/api/images")
        found["server's memory"] = f"{server.memory():.0f} MB"
    found |= replay(place / "log")
    order = [*GOALS, *(what for what in found if what not in GOALS)]
    rows = [{"what": what, "measured": found[what], "goal": GOALS.get(what, "")} for what in order]
    return rows + in_browser(folder)


def in_browser(folder: Path) -> list[dict[str, str]]:
    """The same folder in a browser: nothing where there is none."""
    if label_browser.chromium() is None or find_spec("playwright") is None:
        return []
    return [
        {"what": f"in a browser: {row['what']}", "measured": f"{row['median']:.0f} ms", "goal": IN_BROWSER[row["what"]]}
        for row in label_browser.measure(folder, 100)
        if row["what"] in IN_BROWSER
    ]


def write_pictures(folder: Path, number: int) -> None:
    """Hard links to a few files: as many names as wanted, and little on the disk."""
    random = np.random.default_rng(0)
    originals = folder.parent / "originals"
    originals.mkdir(parents=True)
    for i in range(8):
        noise = Image.fromarray(random.integers(0, 255, (48, 64, 3), np.uint8))
        noise.resize((500, 375), Image.Resampling.BICUBIC).save(originals / f"{i}.jpg", quality=90)
    noise.resize((4000, 3000), Image.Resampling.BICUBIC).save(originals / "large.jpg", quality=90)
    for start in range(0, number, 10_000):
        inner = folder / f"day-{start // 10_000:02}"
        inner.mkdir(parents=True)
        for n in range(start, min(start + 10_000, number)):
            os.link(originals / f"{n % 8}.jpg", inner / f"IMG_{n:06}.jpg")
    (folder / "large").mkdir()
    for n in range(60):
        os.link(originals / "large.jpg", folder / "large" / f"L{n:02}.jpg")


class Server:
    """A running server, and a connection to it such as a browser keeps open."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        match = re.match(r"http://([^/]+)(/\?token=\S+)", address)
        assert match is not None
        self._connection = http.client.HTTPConnection(match[1], timeout=120)
        self._connection.request("GET", match[2])
        answer = self._connection.getresponse()
        answer.read()
        self._headers = {"Cookie": str(answer.headers["Set-Cookie"]).partition(";")[0], "Origin": f"http://{match[1]}"}

    def raw(self, path: str, headers: dict[str, str] | None = None) -> bytes:
        self._connection.request("GET", path, headers=self._headers | (headers or {}))
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def get(self, path: str) -> Any:
        return json.loads(self.raw(path))

    def post(self, path: str, body: Any) -> None:
        headers = self._headers | {"Content-Type": "application/json"}
        self._connection.request("POST", path, json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content

    def memory(self) -> float:
        """MB that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024

    def busy(self) -> float:
        """Seconds of processor time that the server took, without its decoders."""
        return processor_time(self.process.pid)

    def decoders(self) -> float:
        """Seconds of processor time that the decoders took."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = 0.0
        for task in children.parent.parent.iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                for pid in (task / "children").read_text().split():
                    found += processor_time(int(pid))
        return found


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "mixmatch", "label", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        address = re.search(r"http://\S+", line)
        assert address is not None, line
        yield Server(process, address[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def first_page(server: Server) -> float:
    """When a page has all it shows first: itself, the state, the columns so far, and 40 thumbnails."""
    server.raw("/")
    server.get("/api/state")
    while server.get("/api/images?from=0")["total"] < 40:
        time.sleep(0.01)
    for n in range(40):
        server.raw(f"/thumb/{n}")
    return time.perf_counter()


def saving(server: Server, pictures: int) -> dict[str, str]:
    server.post("/api/classes", {"id": "class-0001", "do": "add", "name": "cat"})
    times = []
    for n in range(400):
        began = time.perf_counter()
        server.post("/api/labels", {"changes": [{"id": f"one-{n:06}", "n": [n], "label": "cat", "before": None}]})
        times.append(1000 * (time.perf_counter() - began))
    many = []
    for i in range(10):
        numbers = list(range(1000 + 500 * i, 1500 + 500 * i))
        began = time.perf_counter()
        server.post("/api/labels", {"changes": [{"id": f"many-{i:04}", "n": numbers, "label": "cat", "before": None}]})
        many.append(1000 * (time.perf_counter() - began))
    numbers = list(range(pictures))
    began = time.perf_counter()
    server.post(
        "/api/labels", {"changes": [{"id": "all-00001", "n": numbers[10_000:], "label": "cat", "before": None}]}
    )
    everything = time.perf_counter() - began
    return {
        "label saved, median": f"{statistics.median(times):.1f} ms",
        "label saved, 99 %": f"{np.percentile(times, 99):.1f} ms",
        "500 labels in one request": f"{statistics.median(many):.0f} ms",
        f"{pictures - 10_000:,} labels in one request": f"{everything:.2f} s",
    }


def thumbnails(server: Server, pictures: int) -> dict[str, str]:
    def rate(numbers: range) -> tuple[float, float]:
        began, busy = time.perf_counter(), server.decoders()
        for n in numbers:
            server.raw(f"/thumb/{n}")
        return len(numbers) / (time.perf_counter() - began), len(numbers) / max(server.decoders() - busy, 1e-9)

    small, large = range(20_000, 20_600), range(pictures, pictures + 60)
    rate(range(19_900, 19_950))  # the decoders have started
    by_core = {"500 x 375": rate(small)[1], "12 megapixels": rate(large)[1]}
    busy = server.busy()
    kept = rate(small)[0]
    of_cpu = len(small) / (server.busy() - busy)
    return {
        "thumbnails of 500 x 375, per core": f"{by_core['500 x 375']:.0f}/s",
        "thumbnails of 12 megapixels, per core": f"{by_core['12 megapixels']:.0f}/s",
        "thumbnails kept in memory": f"{kept:.0f}/s ({of_cpu:.0f} per s CPU)",
    }


def columns(server: Server) -> str:
    began = time.perf_counter()
    content = server.raw("/api/images?from=0", {"Accept-Encoding": "gzip"})
    return f"{1000 * (time.perf_counter() - began):.0f} ms, {len(content) / 1000:,.0f} kB"


def replay(folder: Path) -> dict[str, str]:
    folder.mkdir()
    with (folder / NAME).open("w") as file:
        for i in range(1, 100_001):
            event = {"seq": i, "t": i, "kind": "label", "who": "ann", "id": f"id-{i:08}", "label": f"class {i % 10}"}
            event |= {"files": [f"folder/picture-{i:06}.jpg"], "before": [None], "source": "key"}
            file.write(json.dumps(event) + "\n")
    log, state = Log(folder), State()
    began, busy = time.perf_counter(), time.process_time()
    log.read(state.apply)
    took, cpu = time.perf_counter() - began, time.process_time() - busy
    log.close()
    shutil.rmtree(folder)
    return {"replay of 100,000 events": f"{took:.2f} s ({cpu:.2f} s CPU)"}


if __name__ == "__main__":
    main()
