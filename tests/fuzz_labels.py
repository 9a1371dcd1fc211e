"""For `fuzz.py`: a folder of labels as the labeling page leaves it, and a session that asks the page for everything."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import mutate

sys.path.insert(0, str(Path(__file__).parent / "label"))

HOME, RUN = ".mixmatch-labels", "run-0001"
FOLDERS = ("", "copies", "thumbnails", "thinking", "trainings", "runs", f"trainings/{RUN}", f"runs/{RUN}")
READ = ("state", "images", "changes?since=0", "exam", "picture/0", "groups", "train", f"report/{RUN}", "export?as=csv")


def make(photos: Path, run: Path) -> None:
    """Label pictures as a person would, and put what a training leaves beside it."""
    from mixmatch import __version__
    from mixmatch.label.features import compute

    session(photos, thinking=False)
    home = photos / HOME
    record = {"address": "http://127.0.0.1:8765/?token=" + "t" * 43, "port": 8765, "token": "t" * 43, "pid": 1}
    (home / "server.json").write_text(json.dumps(record))
    (home / "auto.json").write_text(json.dumps({"on": False, "every": 20}))
    listing = json.loads((home / "listing.json").read_text())
    identities = zip(listing["files"], listing["sizes"], listing["times"], strict=True)
    pictures = np.random.default_rng(0).integers(0, 255, (len(listing["files"]), 32, 32, 3), np.uint8)
    (home / "thinking").mkdir(exist_ok=True)
    cache = home / "thinking" / "features.npz"
    compute(pictures.__getitem__, [json.dumps(each) for each in identities], cache)
    kept = home / "trainings" / RUN
    kept.mkdir(parents=True, exist_ok=True)
    (kept.parent / f"methods-{__version__}.json").write_text(json.dumps([{"name": "mixmatch"}, {"name": "vat"}]))
    (kept / "output.txt").write_text("step 4/4 · 2 steps/s\n")
    shutil.copy(home / "labels.csv", kept / "labels.csv")
    probabilities = np.tile(np.array([[0.9, 0.1]], np.float16), (len(pictures), 1))
    np.savez(kept / "guesses.npz", numbers=np.arange(len(pictures)), probabilities=probabilities)
    about = {
        "state": "done", "method": "mixmatch", "steps": 4, "image_size": 8, "options": {"seed": 1}, "began": 1.7e9,
        "labels": 4, "tests": 2, "seq": 3, "pid": 99999999, "classes": ["cat", "dog"], "listing": listing["listing"],
        "seconds": 3.0, "error": None, "exam": None,
    }  # fmt: skip
    (kept / "about.json").write_text(json.dumps(about))
    shutil.copytree(run, home / "runs" / RUN)


def change(photos: Path, rng: random.Random, outside: Path) -> None:
    """Damage a folder of labels, or turn it against whoever opens it."""
    home = photos / HOME
    if rng.random() < 0.15:
        place = home / rng.choice(FOLDERS)
        shutil.rmtree(place)
        place.symlink_to(outside)
        if place == home:
            return
    if rng.random() < 0.15:  # what is written there, a stranger may have put there before
        for name in ("set-aside.txt", "trainings/run-0002", "thinking/next.npz", "thinking/next.output.txt"):
            if (home / name).parent.is_dir() and not (home / name).parent.is_symlink():
                (home / name).symlink_to(outside / "diary.txt")
    names = ["log.jsonl"] * 3 + ["listing.json", "server.json", "auto.json", "lock", "labels.csv"]
    names += [f"trainings/{RUN}/{name}" for name in ("about.json", "about.json", "guesses.npz", "output.txt")]
    names += ["thinking/features.npz", f"runs/{RUN}/metrics.jsonl", f"runs/{RUN}/report.html"]
    names += [str(path.relative_to(home)) for path in (home / "thumbnails").rglob("*") if path.is_file()][:2]
    for name in {rng.choice(names) for _ in range(rng.choice([1, 1, 2, 4]))}:
        inside = (home / name).parent.resolve().is_relative_to(home.resolve())
        if (home / name).is_file() and inside:  # a folder on the way may lead outside
            mutate.change_file(home / name, rng, outside)
    if rng.random() < 0.1:
        mutate.replace_file(next(iter(photos.rglob("*.png"))), rng, outside)


def session(photos: Path, thinking: bool) -> None:
    """Open a folder and ask for everything."""
    from labeling import client_of

    from mixmatch.label.desk import Desk
    from mixmatch.label.home import home_of, locked, read_record
    from mixmatch.label.opening import FirstPage

    home = home_of(photos)
    with locked(home):
        FirstPage.take(home, str(read_record(home).get("token")))
        desk = Desk(photos, home, "ann")
        try:
            desk.start()
            desk.wait()
            ask(client_of(desk), desk.book.listing.files, thinking)
            desk._remember_contents()
            desk.write_csv()
        finally:
            desk.close()


def ask(client: Any, files: list[str], thinking: bool) -> None:
    """Ask for everything, give a label and undo it. What the server cannot do, it must say."""
    for name in (*READ, *(("next", "suspects") if thinking else ())):
        answer = client.get(f"/api/{name}")
        assert answer.status_code < 500 or answer.status_code == 507, f"Traceback: {name}: {answer.text}"
    for n in range(min(3, len(files))):
        for kind in ("thumb", "image"):
            assert client.get(f"/{kind}/{n}").status_code < 500, "Traceback: a picture"
    number = random.randrange(10**9)
    for path, body in (
        ("classes", {"do": "add", "name": "bird"}),
        ("labels", {"changes": [{"id": f"fuzz-{number}", "n": [0], "label": "bird", "before": None}]}),
        ("undo", {}),
    ):
        answer = client.post(f"/api/{path}", json={"id": f"fuzz-{number}-{path}", **body})
        assert answer.status_code < 500 or answer.status_code == 507, f"Traceback: {path}: {answer.text}"
