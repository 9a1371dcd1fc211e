"""Start the page from the command line. The commonest way is read here, because the option parser with all that it
imports takes as long as everything else that is done before the page is there; any other way is left to it."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mixmatch.errors import not_installed
from mixmatch.text import printable


def start(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    features: str = "run",
    weights: Path | None = None,
) -> None:
    """Serve the page of a folder until it is stopped, or name and open the one that is served already."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise not_installed("the page", package, "label")
    from mixmatch.label.home import AlreadyServed
    from mixmatch.label.serve import serve

    try:
        serve(folder, host=host, port=port, open_browser=browser, features=features, weights=weights, say=_say)
    except AlreadyServed as found:
        if found.address is None:
            raise
        _say(str(found))
        if browser:
            webbrowser.open(found.address)


def plain_folder(arguments: Sequence[str]) -> tuple[Path, bool] | None:
    """Of `label FOLDER` and `label FOLDER --no-browser`, in any order, the folder and whether to open the browser.

    >>> plain_folder(["label", "photos", "--no-browser"])
    (PosixPath('photos'), False)
    >>> plain_folder(["label", "photos", "--port", "8000"]), plain_folder(["label", "--help"]), plain_folder([])
    (None, None, None)
    """
    rest = [each for each in arguments[1:] if each != "--no-browser"]
    if arguments[:1] != ["label"] or len(rest) != 1 or rest[0].startswith("-") or not rest[0].strip():
        return None
    return Path(rest[0]).expanduser(), "--no-browser" not in arguments


def _say(text: str) -> None:
    print(printable(text, lines=True), file=sys.stderr, flush=True)
