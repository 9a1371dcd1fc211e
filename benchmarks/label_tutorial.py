"""The tutorial of docs/label.md, done by a program: its numbers, and its pictures.

    python benchmarks/label_tutorial.py [--minutes 5] [--pictures docs/images] [--json]

Writes 2,000 frogs, horses and ships of CIFAR-10 to a flat folder, starts `mixmatch label`, and uses the page in
headless chromium as the tutorial says: an exam of 50, 60 suggested pictures by keys (two of them wrong on purpose), one
run. Then it compares what the exam says with the truth, which the page does not know. A run takes at most about
as long as `--minutes` says, on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from label_browser import FLAGS, chromium, serve
from PIL import Image

from mixmatch import data

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

KEYS = {"frog": "1", "horse": "2", "ship": "3"}
PICTURES, EXAM, LABELS = 2000, 50, 60
WRONG = (17, 41)
"""Which of the labels are given wrongly, for Check to find."""
MOST_BYTES = 150_000
"""Of a picture in the docs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="Budget of the run.")
    parser.add_argument("--pictures", type=Path, help="Take the docs' pictures, and put them here.")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place) / "photos"
        truth = write_photos(folder)
        server, address = serve(folder)
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            page = browser.new_context(viewport={"width": 1120, "height": 700}).new_page()
            page.set_default_timeout(60_000)
            page.goto(address)
            label(page, truth)
            seconds = train(page, args.minutes)
            found = {"seconds": seconds, **compare(page, truth)}
            if args.pictures:
                take_pictures(page, browser, address, truth, args.pictures)
        finally:
            browser.close()
            server.terminate()
            server.communicate(timeout=60)
    print(json.dumps(found, indent=1) if args.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


def write_photos(folder: Path) -> dict[str, str]:
    """The folder, with names that give nothing away; returns the class of each file."""
    source = data.load("cifar10")
    truth: dict[str, str] = {}
    folder.mkdir(parents=True)
    for pixels, number in zip(source.train.inputs, source.train.labels, strict=True):
        if (name := source.classes[number]) in KEYS:
            file = f"IMG_{len(truth) + 1:04d}.jpg"
            Image.fromarray(pixels).resize((192, 192), Image.Resampling.LANCZOS).save(folder / file, quality=90)
            truth[file] = name
            if len(truth) == PICTURES:
                break
    return truth


def label(page: Page, truth: dict[str, str]) -> None:
    """Steps 1 to 3: classes, exam, suggestions."""
    for i, name in enumerate(KEYS):
        field = page.locator("#first-class" if i < 2 else "#new-class")
        field.fill(name)
        field.press("Enter")
        page.locator(f".side [data-value='{i}']").wait_for()
    page.locator("#new-class").press("Escape")
    page.locator("#say-exam button.primary").click()
    page.locator("#say-exam-here").wait_for()
    for _ in range(EXAM):
        page.keyboard.press(KEYS[truth[current(page)]])
    wait_until(page, "/api/next?k=5")
    page.locator("#tab-label").click()
    page.locator("#filter").select_option("unlabeled")
    page.locator("#filter").select_option("next")
    page.locator("#why").wait_for()
    page.locator("#grid").focus()
    for i in range(LABELS):
        right = truth[current(page)]
        page.keyboard.press(KEYS[("ship" if right != "ship" else "frog") if i in WRONG else right])
    page.locator("#saved[data-state=saved]").wait_for()


def train(page: Page, minutes: float) -> float:
    """Step 4: seconds that the run took, its guesses included."""
    page.locator("#tab-train").click()
    page.locator("#minutes").fill(str(minutes))
    start = time.perf_counter()
    page.locator("#start").click()
    page.locator("#error").wait_for(timeout=60_000 * (10 * minutes + 10))
    page.locator("#start").wait_for()
    return time.perf_counter() - start


def compare(page: Page, truth: dict[str, str]) -> dict[str, Any]:
    """What the exam says of the run, and what is true; what Check finds."""
    state, images, run = (ask(page, path) for path in ("/api/state", "/api/images?from=0", "/api/train"))
    names = {each["id"]: each["name"] for each in state["classes"]}
    rows = zip(images["name"], images["guess"], images["sure"], images["label"], images["flags"], strict=True)
    guesses = [
        (truth[f], names[g], sure) for f, g, sure, labeled, flags in rows if g >= 0 and labeled < 0 and not flags & 1
    ]
    sure = [each for each in guesses if each[2] >= 990]
    suspects = wait_until(page, "/api/suspects")["items"]
    return {
        "labels": run["history"][0]["labels"],
        "steps": run["history"][0]["steps"],
        "exam": {name: run["exam"][name] for name in ("n", "wrong", "error", "low", "high")},
        "true error on the unlabeled pictures": 100 * wrong(guesses) / len(guesses),
        "unlabeled pictures": len(guesses),
        "99 % sure": len(sure),
        "of those wrong": wrong(sure),
        "suspects": [(s["label"], s["instead"], truth[images["name"][s["n"]]]) for s in suspects],
    }


def wrong(guesses: list[tuple[str, str, int]]) -> int:
    return sum(right != guess for right, guess, _ in guesses)


def take_pictures(page: Page, browser: Browser, address: str, truth: dict[str, str], place: Path) -> None:
    def take(name: str, page: Page = page) -> None:
        page.wait_for_timeout(2500)
        shot = place / f"{name}.png"
        page.screenshot(path=shot)
        reduce(shot)

    take("label-train")
    page.locator("#tab-guesses").click()
    page.locator(".strip img").first.wait_for()
    take("label-guesses")
    wait_until(page, "/api/next?k=5")
    page.locator("#tab-label").click()
    page.locator("#filter").select_option("next")
    page.locator("#why").wait_for()
    page.locator("#grid").focus()
    for _ in range(7):
        page.keyboard.press(KEYS[truth[current(page)]])
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.evaluate("document.querySelector('#grid').scrollTop = 0")
    take("label-light")
    page.emulate_media(color_scheme="dark")
    page.keyboard.press("Enter")
    take("label-dark")
    phone = browser.new_context(viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True).new_page()
    phone.goto(address)
    phone.locator("#filter").select_option("all")
    phone.locator("#grid-4").tap()
    take("label-phone", phone)


def reduce(path: Path) -> None:
    """The page's own colors exactly, and as many others as fit."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    page_colors = [
        (230, 159, 0),
        (0, 114, 178),
        (0, 158, 115),
        (11, 98, 168),
        (10, 122, 75),
        (255, 255, 255),
        (20, 23, 26),
    ]
    for colors in (248, 180, 120, 80):
        found = image.quantize(colors, method=Image.Quantize.MEDIANCUT).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette([*(part for color in page_colors for part in color), *found[: 3 * colors]])
        image.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size < MOST_BYTES:
            return


def current(page: Page) -> str:
    return page.locator("#foot .file").inner_text()


def ask(page: Page, path: str) -> Any:
    return page.evaluate("path => fetch(path).then((answer) => answer.json())", path)


def wait_until(page: Page, path: str) -> Any:
    """The answer once it is ready, and of the labels as they are now: some are computed in the background."""
    for _ in range(300):
        if (answer := ask(page, path))["ready"] and answer.get("current", True):
            return answer
        time.sleep(1)
    raise SystemExit(f"{re.split(r'[?]', path)[0]} did not get ready")


if __name__ == "__main__":
    main()
