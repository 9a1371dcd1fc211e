"""`mixmatch label`: a page in the browser to label a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixmatch.label.start import start


def label(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images, in any tree.")],
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Default: the same as last time, or a free one.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Any but 127.0.0.1 admits everyone who has the token.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    features: Annotated[
        str,
        typer.Option(
            metavar="run|pixels|basic|timm:NAME",
            help="Features for comparing pictures, to suggest what to label next: the newest run's once there is "
            "one, pixels, or a network's.",
        ),
    ] = "run",
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights for timm:NAME; otherwise timm downloads its own once.")
    ] = None,
) -> None:
    """Label a folder of images in the browser, train on the labels, and label what matters next.

    Prints the address of a page that only this machine can reach. Every label is on the disk before the page says
    "saved"; Ctrl-C leaves everything saved. Labels are kept in FOLDER/.mixmatch-labels; images are never moved.

    Examples:
      mixmatch label photos/
      mixmatch label photos/ --no-browser --port 8765
      mixmatch label photos/ --features timm:resnet50 --weights resnet50.safetensors
      mixmatch train photos/ --labels-file photos/.mixmatch-labels/labels.csv
    """
    start(
        folder.expanduser(),
        host=host,
        port=port,
        browser=browser,
        features=features,
        weights=None if weights is None else weights.expanduser(),
    )
