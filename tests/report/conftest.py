"""Small finished runs to report on, and the page as a browser's parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from mixmatch import api
from mixmatch.training.progress import Quiet

VOID = {"meta", "br", "img", "line", "rect", "circle", "polyline"}
NAMES = ('<b> & "cats"', "größe 猫's", "plain")


class Page(HTMLParser):
    """Checks that tags are balanced; keeps all tags, the visible text, and tables as lists of rows of cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._table: list[list[str]] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join("".join(self.pieces).split())  # a space that does not break is a space

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = self.tables.setdefault(str(given["class"]), [])
        if tag == "tr":
            self._table.append([])
        if tag in ("td", "th"):
            self._table[-1].append("")
        if tag in ("p", "div", "h1", "h2", "br", "td", "th", "li", "text"):
            self.pieces.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.pieces.append(data)
        if {"td", "th"} & set(self.open):
            self._table[-1][-1] += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="session")
def read_page() -> type[Page]:
    return Page


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the digits, with its labels-only baseline. Do not change it."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    options = {"labels": 20, "steps": 60, "eval_every": 10, "reporter": Quiet(), "device": "cpu"}
    api.train("digits", out=out, **options)
    api.train("digits", out=out / "baseline", method="supervised", **options)
    return out


@pytest.fixture(scope="session")
def user_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on user images with awkward names: 4 labels per class, so there is nothing to evaluate on."""
    folder = tmp_path_factory.mktemp("user") / "my <photos>"
    digits = load_digits(n_class=3)
    for i in range(72):
        where = folder / (NAMES[digits.target[i]] if i < 12 else "unlabeled")
        where.mkdir(parents=True, exist_ok=True)
        pixels = (digits.images[i] * 15.9).astype(np.uint8)
        Image.fromarray(pixels).resize((40, 36)).save(where / f"<b{i}> & 'ü', \"x\"{'y' * 40}.png")
    out = folder.parent / "run"
    settings = {"steps": 6, "eval_every": 3, "batch_size": 8, "network": "wrn-small"}
    api.train(str(folder), out=out, reporter=Quiet(), device="cpu", image_size=48, **settings)
    return out
