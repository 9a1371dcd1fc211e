"""A folder of small pictures on the desk, and a client that may talk to its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from labeling import client_of, opened
from PIL import Image
from starlette.testclient import TestClient

from mixmatch.label.desk import Desk


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two labeled pictures, four others, and a file that is none."""
    folder = tmp_path / "photos"
    for i, name in enumerate(["cat/a.png", "dog/b.png", *(f"unlabeled/{n}.png" for n in range(4))]):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20), (40 * i, 20, 90)).save(path)
    svg = "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    (folder / "unlabeled" / "<img src=x onerror=alert(1)>.jpg").write_text(svg)
    return folder


@pytest.fixture
def desk(photos: Path) -> Iterator[Desk]:
    desk = opened(photos)
    yield desk
    desk.close()


@pytest.fixture
def client(desk: Desk) -> TestClient:
    return client_of(desk)
