"""A program that computes the features of all pictures, which may take long, and keeps them as it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.user.images import UnreadableImage, decode_image, quiet_pillow
from mixmatch.label import features
from mixmatch.label.program import answering, read_answer
from mixmatch.text import count


def identities(listing: Mapping[str, Any]) -> list[str]:
    """What stands for the content of each picture."""
    return [json.dumps(each) for each in zip(listing["files"], listing["sizes"], listing["times"], strict=True)]


def embed(asked: dict[str, Any]) -> dict[str, Any]:
    """Compute what is not computed yet; answers with the file it is in."""
    root, gone, folder = Path(asked["root"]), set(asked["gone"]), Path(asked["folder"])
    listing = read_answer(Path(asked["listing"]))

    def read(n: int, side: int = features.SIDE) -> npt.NDArray[np.uint8] | None:
        if n in gone:
            return None
        try:
            return decode_image(root / listing["files"][n], side, side, 3)[0]
        except UnreadableImage:
            return None

    def progress(done: int, total: int) -> None:
        print(f"{done} of {count(total, 'picture')}", flush=True)

    names = identities(listing)
    with quiet_pillow():
        if asked["features"] == "pixels":
            cache = folder / "features.npz"
            found = features.compute(read, names, cache, progress=progress)
        else:
            from mixmatch.label.network import SAMPLE, Network  # it has torch, which takes seconds to load

            network = Network.build(asked["features"], asked["weights"], read, len(names), folder)
            cache = folder / f"features-{network.key}.npz"
            found = features.compute(
                lambda n: read(n, network.side), names, cache, by=network, sample=SAMPLE, progress=progress
            )
    return {"known": int(found.known.sum()), "total": len(names), "cache": str(cache)}


if __name__ == "__main__":
    answering(embed)
