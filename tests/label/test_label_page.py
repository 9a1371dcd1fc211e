"""The labeling page in a real browser, against the real server."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browsing import BROWSER, EVIL, FLAGS, Server, Watched, digits, need_browser
from PIL import Image

pytestmark = pytest.mark.slow
Open = Callable[..., Any]
CLASSES = {"a": "1", "b": "2", "c": "3"}
"""The key of each class: `digits` names pictures by their class."""
NAMES = "fetch('/api/images?from=0').then(answer => answer.json()).then(images => images.name)"
AWAY = "Failed to load resource: net::ERR_"
"""What the browser notes when a server is killed: connections refused, reset, cut off."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:
    servers: list[Server] = []

    def start(folder: Path) -> Server:
        servers.append(Server(folder))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Open the page as a person of one's own: a browser without a memory."""
    contexts = []

    def visit(address: str, **options: Any) -> Watched:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        return Watched(context, address)

    yield visit
    for context in contexts:
        context.close()


def name_classes(page: Any, *names: str) -> None:
    """Type them, as the page asks for."""
    for i, name in enumerate(names):
        field = page.locator("#first-class" if i < 2 else "#new-class")
        field.fill(name)
        field.press("Enter")
        page.locator(f".side [data-value='{i}']").wait_for()
    page.locator("#new-class").press("Escape")  # back to the pictures


def current(page: Any) -> str:
    """The name of the picture that has the focus."""
    return str(page.locator("#foot .file").inner_text())


def label_truly(page: Any, labeled: dict[str, str], many: int) -> None:
    """Give so many pictures the class that their names say, one after the other, and note it."""
    for _ in range(many):
        name = current(page)
        labeled[name] = name[4]
        page.keyboard.press(CLASSES[name[4]])


def saved(page: Any) -> None:
    page.locator("#saved", has_text=re.compile("^Saved$")).wait_for()


def shown(page: Any) -> int:
    """Pictures that are labeled, as the page counts them."""
    return int(page.locator("#labeled").inner_text().replace(",", ""))


def until(page: Any, holds: Callable[[], object]) -> None:
    """Wait for what no locator can say."""
    for _ in range(1200):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come to hold")


def test_thirty_pictures_by_keys_alone(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 20))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    page.locator("#first-class").wait_for()
    page.locator("#first-class:focus").wait_for()  # nothing needs a click
    keys.type("a\nb\n")
    page.locator("#new-class:focus").wait_for()
    keys.press("Escape")
    expected = {}
    for _ in range(30):
        name = current(page)
        assert name not in expected  # each key moves on by itself
        expected[name] = name[4]
        keys.press(CLASSES[name[4]])
    saved(page)
    assert shown(page) == 30
    assert "labeled" not in page.url
    watched.check()
    assert server.labels() == expected


def test_select_as_in_a_file_manager(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 20))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    page.locator("#filter").select_option("all")
    names = sorted(path.name for path in server.folder.glob("*.png"))

    def tile(index: int) -> Any:
        return page.locator(f"#grid-{index}")

    tile(2).click()
    tile(9).click(modifiers=["Shift"])
    keys.press("1")
    saved(page)
    expected = dict.fromkeys(names[2:10], "a")
    tile(12).click()
    tile(14).click(modifiers=["Control"])
    tile(15).click(modifiers=["Control"])
    tile(14).click(modifiers=["Control"])  # out again
    keys.press("2")
    saved(page)
    expected |= dict.fromkeys([names[12], names[15]], "b")
    keys.press("Home")
    first, last = tile(0).bounding_box(), tile(1).bounding_box()
    page.mouse.move(first["x"] + first["width"] / 2, first["y"] + first["height"] / 2)
    page.mouse.down()
    page.mouse.move(last["x"] + last["width"] / 2, last["y"] + last["height"] / 2, steps=4)
    page.mouse.up()
    assert "labels 2 selected" in page.locator("#which").inner_text()
    keys.press("1")
    saved(page)
    expected |= dict.fromkeys(names[:2], "a")
    assert shown(page) == len(expected)
    keys.press("Control+a")
    assert "labels 40 selected" in page.locator("#which").inner_text()
    keys.press("2")
    keys.press("Control+z")  # one key, one undo, however many
    saved(page)
    assert shown(page) == len(expected)
    keys.press("Control+a")
    page.locator("#filter").select_option("unlabeled")  # what was selected is out of sight
    page.locator("#foot", has_text=f"{40 - len(expected)} pictures shown").wait_for()
    assert "labels 1 selected" in page.locator("#which").inner_text()
    page.locator("#grid").focus()
    keys.press("End")
    expected[current(page)] = "a"
    keys.press("Home")
    expected[current(page)] = "a"
    for _ in range(4):
        keys.down("1")  # held down: one picture, not one after the other
    keys.up("1")
    for _ in range(40):
        keys.down("ArrowRight")  # on and on
    keys.up("ArrowRight")
    keys.press("1")
    saved(page)
    assert shown(page) == len(expected)
    page.locator("#folder").click()  # beside everything
    keys.press("Tab")
    assert page.locator("#tab-label:focus").count() == 1
    watched.check()
    assert server.labels() == expected


def test_undo_after_a_restart(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 5))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    first = current(page)
    keys.press("1")
    keys.press("Shift+ArrowRight")
    keys.press("2")
    saved(page)
    assert shown(page) == 3
    server.stop()
    server.start()
    held: list[Any] = []
    page.route("**/api/state", lambda route: held.append(route), times=1)
    page.reload(wait_until="commit")
    page.locator("[inert] #manage").wait_for()
    for key in ("Control+z", "1", "?"):
        keys.press(key)  # too early: nothing is there to act upon
    page.evaluate("window.dispatchEvent(new Event('online'))")  # nor to ask for changes of
    while held:
        held.pop().continue_()
    page.locator("#undo:enabled").wait_for()
    assert page.locator("#total").inner_text() == "10 pictures"  # all are known, while they are looked for again
    page.locator("#grid").press("Control+z")
    page.locator("#labeled", has_text=re.compile("^1$")).wait_for()
    keys.press("Control+Shift+z")
    page.locator("#labeled", has_text=re.compile("^3$")).wait_for()
    keys.press("Control+z")
    page.locator("#labeled", has_text=re.compile("^1$")).wait_for()
    saved(page)
    watched.check(AWAY)
    assert server.labels() == {first: "a"}


def test_nothing_is_lost_when_the_server_is_killed(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 20))
    watched = visit(server.address)
    page = watched.page
    name_classes(page, "a", "b")
    expected: dict[str, str] = {}
    label = partial(label_truly, page, expected)
    label(6)
    server.kill()  # in the middle: some are answered, some are on their way
    label(8)
    bar = page.locator("#bars [role=alert]")
    bar.wait_for()
    waiting = int(re.search(r"(\d+) labels? (?:are|is) kept", bar.inner_text())[1])
    assert 8 <= waiting <= 14
    assert f"{waiting} not saved" in page.locator("#saved").inner_text()
    assert shown(page) == 14
    server.start()
    saved(page)
    assert bar.count() == 0
    label(3)
    saved(page)
    server.kill()
    label(4)
    page.close()  # with labels that nobody has
    server.start()
    again = Watched(page.context, server.address)
    again.page.locator("#labeled", has_text=re.compile("^21$")).wait_for()
    saved(again.page)
    assert again.page.evaluate("Object.keys(localStorage).filter((key) => key.includes('outbox')).length") == 0
    again.check()
    watched.check(AWAY)
    assert server.labels() == expected


def test_waiting_labels_find_their_pictures_by_name(tmp_path: Path, serve: Open, visit: Open) -> None:
    """The list of pictures is made anew while labels wait, and every picture has another number."""
    server = serve(digits(tmp_path / "photos", 5))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    expected = {current(page): "a"}
    keys.press("1")
    saved(page)
    server.kill()
    for _ in range(2):
        expected[current(page)] = "b"
        keys.press("2")
    (server.folder / ".mixmatch-labels" / "listing.json").unlink()
    for i in range(3):  # found before the others
        shutil.copy(next(server.folder.glob("*.png")), server.folder / f"000-00{i}.png")
    server.start()
    saved(page)
    watched.check(AWAY, "410")
    assert server.labels() == expected


def test_a_late_list_takes_no_label_away(tmp_path: Path, serve: Open, visit: Open) -> None:
    """All pictures are read anew while somebody labels: the answer is older than the labels given meanwhile."""
    server = serve(digits(tmp_path / "photos", 3))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    page.locator("#filter").select_option("all")
    page.locator("#grid").focus()
    late = []
    page.route("**/api/images?from=0", lambda route: late.append((route, route.fetch())))
    shutil.copy(server.folder / "000-a.png", server.folder / "zzz-a.png")
    page.locator("#more").click()
    page.get_by_role("menuitem", name="Look for new files").click()
    page.locator("#total", has_text="7 pictures").wait_for()
    until(page, lambda: late)
    page.route("**/api/changes**", lambda route: None)  # nothing else tells the page what it lost
    page.locator("#grid").focus()
    keys.press("1")
    keys.press("2")
    saved(page)
    route, answer = late.pop()
    route.fulfill(response=answer)
    page.locator("#grid-6").wait_for()  # the new list is there
    assert [page.locator(f"#grid-{i} .tag").inner_text() for i in range(3)] == ["a", "b", ""]
    watched.check()
    assert list(server.labels().values()) == ["a", "b"]


def test_a_page_that_was_shown_more_than_the_log_has(tmp_path: Path, serve: Open, visit: Open) -> None:
    """The server counts from less than what the page has seen: the page takes that for what holds."""
    server = serve(digits(tmp_path / "photos", 3))
    watched = visit(server.address)
    page = watched.page
    name_classes(page, "a", "b")

    def ahead(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"seq": 40})

    page.route("**/api/state", ahead)
    page.route("**/api/images?from=0", ahead, times=1)
    page.route("**/api/changes**", lambda route: route.abort())  # the first answer is that to a label
    page.reload()
    page.locator("#filter").select_option("all")
    page.locator("#grid-0").wait_for()
    name = current(page)
    page.locator("#grid").press("1")
    saved_as = page.locator(f"#grid [aria-label='{name}, a']")
    saved_as.wait_for()
    page.locator("#undo[title='Undo: 1 labeled a (Ctrl+Z)']").wait_for()  # the server has it
    page.unroute("**/api/changes**")
    saved(page)
    until(page, lambda: saved_as.count() == shown(page) == 1)  # the grid may be drawn anew just now
    watched.check("ERR_FAILED")
    assert server.labels() == {name: "a"}


def test_a_full_disk(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 2))
    watched = visit(server.address)
    page = watched.page
    name_classes(page, "a", "b")
    full = '{"error": "the disk is full: make room, and labeling goes on"}'
    page.route("**/api/labels", lambda route: route.fulfill(status=507, body=full, content_type="application/json"))
    first = current(page)
    page.keyboard.press("1")
    page.locator("#bars [role=alert]", has_text="the disk is full: make room").wait_for()
    assert page.locator("#saved").inner_text() == "1 not saved"
    page.unroute("**/api/labels")
    saved(page)
    assert page.locator("#bars [role=alert]").count() == 0
    watched.check("507")
    assert server.labels() == {first: "a"}


def test_what_waits_for_a_server_that_is_away_says_so(tmp_path: Path, serve: Open, visit: Open) -> None:
    """Labels wait in the browser. Whatever else is done is refused, and what was typed is still there."""
    server = serve(digits(tmp_path / "photos", 20))
    watched, other = visit(server.address), visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    label_truly(page, {}, 1)
    saved(page)
    server.kill()
    keys.press("Control+z")
    page.locator("#bars [role=alert]").wait_for()
    page.locator("#new-class").fill("c")
    keys.press("Enter")
    page.locator("#toast", has_text="the server does not answer").wait_for()
    assert page.locator("#new-class").input_value() == "c"
    server.start()
    saved(page)
    other.page.route("**/api/redo", lambda route: route.abort())
    for tab in (other, watched):
        tab.page.locator("#grid").press("Control+Shift+z")
    other.page.locator("#bars [role=alert]").wait_for()
    saved(page)
    other.page.unroute("**/api/redo")
    other.page.locator("#toast", has_text="there is nothing to redo").wait_for()
    saved(other.page)  # it was answered, if only with a refusal
    assert other.page.locator("#bars > *").count() == 0
    watched.check(AWAY)
    other.check(AWAY, "ERR_FAILED", "422")


def test_an_undo_whose_answer_is_lost_is_done_once(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 3))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    expected: dict[str, str] = {}
    label_truly(page, expected, 1)
    keys.press("1")
    saved(page)

    def lose(route: Any) -> None:
        route.fetch()
        route.abort()

    page.route("**/api/undo", lose, times=1)
    keys.press("Control+z")
    page.locator("#toast", has_text=re.compile(r"^Undone\.$")).wait_for()
    saved(page)
    watched.check("ERR_FAILED")
    assert server.labels() == expected


def test_the_current_picture_stays_in_sight_below_a_bar(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 40))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    keys.press("ArrowDown")
    while page.locator("#grid").evaluate("box => box.scrollTop") == 0:
        keys.press("ArrowDown")
    hidden = """() => {
        const place = (each) => document.querySelector(each).getBoundingClientRect();
        const [box, tile] = [place("#grid"), place(".tile.current")];
        return Math.max(0, box.top - tile.top, tile.bottom - box.bottom);
    }"""
    assert page.evaluate(hidden) == 0
    server.kill()
    page.locator("#bars [role=alert]").wait_for()
    until(page, lambda: page.evaluate(hidden) == 0)  # once it is laid out again
    server.start()
    saved(page)
    until(page, lambda: page.evaluate(hidden) == 0)
    watched.check(AWAY)


def test_a_browser_that_keeps_nothing(tmp_path: Path, serve: Open, visit: Open) -> None:
    """Its storage is full while the server is away: the page says that labels are in it alone, as long as they are."""
    server = serve(digits(tmp_path / "photos", 3))
    watched = visit(server.address)
    page = watched.page
    name_classes(page, "a", "b")
    back = partial(page.evaluate, "window.dispatchEvent(new Event('online'))")
    names = [current(page)]
    page.route("**/api/labels", lambda route: route.abort())
    page.evaluate("() => { window.room = Storage.prototype.setItem; }")
    page.evaluate("() => { Storage.prototype.setItem = () => { throw 'full'; }; }")
    page.keyboard.press("1")
    bars = page.locator("#bars > *")
    bars.filter(has_text="1 label waits in this page alone").wait_for()
    assert bars.count() == 1
    page.evaluate("() => { Storage.prototype.setItem = window.room; }")
    names.append(current(page))
    page.keyboard.press("1")
    bars.filter(has_text="2 labels are kept in this browser").wait_for()
    page.unroute("**/api/labels")

    def odd(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"saved": None})

    page.route("**/api/labels", odd)  # an answer that the page makes nothing of is no reason to send nothing more
    back()
    until(page, lambda: any("reading 'includes'" in error for error in watched.errors))
    page.unroute("**/api/labels")
    back()
    saved(page)
    assert bars.count() == 0
    watched.check("ERR_FAILED", "reading 'includes'")
    assert server.labels() == dict.fromkeys(names, "a")


def test_two_people_in_conflict(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 5))
    ann, bob = visit(server.address), visit(server.address)
    name_classes(ann.page, "a", "b")
    for person, name in ((ann, "ann"), (bob, "bob")):
        person.page.evaluate("who => fetch('/api/who', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify({who})})", name)  # fmt: skip # noqa: E501
    bob.page.locator(".side [data-value='1']").wait_for()  # bob sees ann's classes
    bob.page.route("**/api/**", lambda route: route.abort())
    for person, key in ((bob, "2"), (ann, "1")):
        person.page.locator("#grid-0").click()
        person.page.keyboard.press(key)
    saved(ann.page)
    bob.page.unroute("**/api/**")
    bob.page.locator("#decide").click()
    answers = bob.page.locator("dialog .pair button")
    assert [text.split()[0] for text in answers.all_inner_texts()] == ["a", "b"]
    assert "ann" in answers.nth(0).inner_text()
    assert "you" in answers.nth(1).inner_text()
    ann.page.locator("#tab-check .n", has_text="1").wait_for()  # she is told too
    ann.page.locator("#tab-check").click()
    ann.page.get_by_text("Two answers").click()
    ann.page.get_by_text("Show both answers").click()
    ann.page.locator("dialog .pair button").first.wait_for()
    both = ann.page.locator("dialog .pair button").all_inner_texts()
    assert [text.split() for text in both] == [["a", "ann"], ["b", "bob"]]
    ann.page.keyboard.press("Escape")
    answers.nth(1).click()
    saved(bob.page)
    ann.page.get_by_text("Decided: b.").wait_for()
    ann.page.get_by_role("button", name="Two answers 0").wait_for()
    ann.page.locator("#tab-label").click()
    ann.page.locator("#filter").select_option("all")
    ann.page.locator("#grid-0 .tag", has_text="b").wait_for()
    ann.page.locator("#tab-check .n").wait_for(state="detached")
    ann.check()
    bob.check("ERR_FAILED", "409")
    assert list(server.labels().values()) == ["b"]


def test_exam_training_and_guesses(tmp_path: Path, serve: Open, visit: Open) -> None:
    """From pictures to a model and back: the exam, suggestions, a run watched to its end, guesses confirmed."""
    server = serve(digits(tmp_path / "photos", 24, side=16))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b")
    expected: dict[str, str] = {}
    label = partial(label_truly, page, expected)
    page.locator("#say-exam").get_by_text("Draw 12 pictures").click()
    page.locator("#say-exam-here").wait_for()
    page.route("**/api/exam", lambda route: None)  # never answered again: the exam needs no further question
    keys.press("End")  # begun at its end, it goes on at its start
    label(12)  # then the page goes on to what it suggests
    page.locator("#exam-count", has_text="12 of 12").wait_for()
    page.locator("#filter >> option:checked", has_text="Suggested next").wait_for(state="attached")
    page.locator("#why").wait_for()
    assert len(page.locator("#why").inner_text()) > 8  # in words
    exam = set(expected)
    label(12)
    assert not exam & set(list(expected)[12:])
    page.locator("#say-train").get_by_text("Train", exact=True).click()
    page.locator("#method").select_option("supervised")
    page.locator("#steps").fill("20")
    page.locator("#start").click()
    page.locator("#now [role=progressbar]").wait_for()
    page.locator("#tab-label").click()  # labeling goes on meanwhile
    page.locator("#filter").select_option("unlabeled")
    page.locator("#grid").focus()
    label(2)
    page.locator("#tab-train").click()
    page.locator("#error").wait_for(timeout=120_000)
    assert "12 exam pictures" in page.locator("#verdict").inner_text()
    assert re.search(r"\d to \d+\.\d %", page.locator("#verdict").inner_text())
    assert "22 pictures without a label" in page.locator("#verdict").inner_text()  # not from all of the folder
    page.locator("#now .chart").wait_for()
    page.locator("#past tbody a", has_text="report").wait_for()
    page.locator("#tab-guesses").click()
    page.get_by_label("How sure").select_option("0")
    until(page, lambda: sum(map(int, page.locator(".chips .n").all_inner_texts())) == 48 - len(expected))
    strip = page.locator(".strip button")
    guessed = page.locator(".chips [aria-pressed=true]").inner_text().split()[0]
    shares = [float(text.strip(" %>")) for text in strip.all_inner_texts()]
    assert shares == sorted(shares)  # the least sure come first
    page.locator("#grid-0").dblclick()  # a closer look confirms nothing
    page.locator("#single:not([hidden])").wait_for()
    keys.press("Escape")
    out = strip.first.get_attribute("aria-label").split(",")[0]
    total = page.locator("#grid .tile.chosen").count()
    assert total == int(page.locator(".chips [aria-pressed=true] .n").inner_text())
    strip.first.click()  # not this one
    page.locator("#confirm", has_text=f"Confirm {total - 1} as {guessed}").wait_for()
    names = [tile.get_attribute("aria-label").split(",")[0] for tile in page.locator("#grid .tile.chosen").all()]
    page.locator("#grid").press("Enter")
    page.locator("#grid-1").wait_for(state="detached")
    assert page.locator("#grid-0").get_attribute("aria-label").startswith(out)
    assert page.locator("#grid-0").get_attribute("aria-selected") == "false"  # what was taken out stays out
    page.locator("#toast button").click()  # undo: the others come back
    page.locator("#confirm", has_text=f"Confirm {total - 1} as {guessed}").wait_for()
    page.locator("#grid").press("Enter")
    page.locator("#toast", has_text="confirmed as").wait_for()
    saved(page)
    watched.check()
    assert out not in names
    assert server.labels() == expected | dict.fromkeys(names, guessed)


def test_a_test_set_is_not_learned_from_and_measures_the_error(tmp_path: Path, serve: Open, visit: Open) -> None:
    for folder, classes in (("a", (0,)), ("b", (1,))):
        digits(tmp_path / "photos" / folder, 8, classes)
        digits(tmp_path / "photos" / "test" / folder, 5, classes)
    digits(tmp_path / "photos" / "unlabeled", 4)
    watched = visit(serve(tmp_path / "photos").address)
    page = watched.page
    page.locator("#say-train", has_text="16 labels to learn from").wait_for()
    page.get_by_role("button", name="OK").click()
    page.locator("#tab-train").click()
    page.locator("#verdict", has_text="on the test set, 10 pictures").wait_for()
    page.locator("#now", has_text="16 labels to learn from").wait_for()
    watched.check()


def test_each_tab_has_its_own_panel(tmp_path: Path, serve: Open, visit: Open) -> None:
    """What stands above the pictures acts on them: it goes with them."""
    server = serve(digits(tmp_path / "photos", 12))
    watched = visit(server.address)
    page = watched.page
    name_classes(page, "a", "b")
    page.locator("#say-exam").wait_for()
    page.keyboard.press("2")
    saved(page)
    suspect = {"n": 0, "instead": "a", "why": "its neighbors are a"}
    group = {"class": "a", "id": 0, "total": 2, "n": [2, 4], "sure": [990, 980]}
    found = {"items": [suspect], "copies": [], "why": "", "ready": True, "current": False, "at": 5}
    page.route("**/api/suspects", lambda route: route.fulfill(json=found))
    page.route("**/api/groups**", lambda route: route.fulfill(json={"run": "one", "least": 0.9, "groups": [group]}))
    for tab, act in (("check", "Change to a"), ("guesses", "Confirm 2 as a")):
        page.locator(f"#tab-{tab}").click()
        page.locator(".banners button", has_text=act).wait_for()
        page.locator("#tab-label").click()
        page.locator("#say-exam").wait_for()
        assert page.locator(".banners > *").count() == 1
    page.clock.install()
    page.locator("#tab-check").click()
    page.locator(".banners button", has_text="Change to a").wait_for()
    found |= {"items": [suspect | {"n": 2}], "current": True, "at": 6}  # of the labels as they are now
    page.clock.fast_forward(2500)
    page.get_by_text("Labels were checked again: show").click()
    page.locator(f"#grid-0[aria-label^='{page.evaluate(NAMES)[2]}']").wait_for()
    page.get_by_text("No label; looks like a").wait_for()
    found |= {"items": [], "at": None, "why": "This cannot be worked out: there is no room"}
    page.locator("#tab-label").click()
    page.locator("#tab-check").click()
    page.get_by_role("heading", name="Nothing was compared").wait_for()
    page.route("**/api/train", lambda route: None)
    page.locator("#tab-train").click()
    page.locator("#start").wait_for()
    assert page.locator("#stop:visible, .card:empty:visible").count() == 0  # nothing is said before the server does
    watched.check()
    assert list(server.labels().values()) == ["b"]


def test_classes_and_exchange(tmp_path: Path, serve: Open, visit: Open) -> None:
    """Classes are renamed, merged, hidden and given keys without losing a label; labels go out and come in as files."""
    server = serve(digits(tmp_path / "photos", 3))
    watched = visit(server.address)
    page, keys = watched.page, watched.page.keyboard
    name_classes(page, "a", "b", "c")
    names = [current(page)]
    for key in "123":
        keys.press(key)
        names.append(current(page))
    page.locator("#manage").click()
    rename = page.get_by_label("Name of a")
    rename.fill("alpha")
    rename.press("Enter")
    page.get_by_label("Merge b into").select_option("alpha")
    page.get_by_text("1 label becomes alpha").wait_for()
    page.get_by_role("button", name="Merge", exact=True).click()
    page.locator("dialog").get_by_text("b (0 labels)").wait_for()  # merged: hidden, not gone
    page.get_by_label("Key of c").fill("1")
    page.get_by_label("Key of c").press("Tab")
    page.locator("#toast", has_text="the key 1 is that of 'alpha': choose another").wait_for()
    assert [page.get_by_label(f"Key of {name}").input_value() for name in ("alpha", "c")] == ["1", "3"]
    assert page.get_by_label("Name of c").evaluate("field => field === document.activeElement")
    page.get_by_label("Key of c").fill("q")
    page.get_by_label("Move c up").hover()
    page.mouse.down()  # leaves the field, so that the key is sent, and the answer comes while the button is held
    page.locator(".side .class kbd", has_text="q").wait_for()
    page.mouse.up()
    page.locator(".side li:first-child .class kbd", has_text="q").wait_for()
    keys.press("Escape")
    assert [text.split()[:2] for text in page.locator(".side ul:first-of-type .class").all_inner_texts()][:2] == [
        ["q", "c"],
        ["1", "alpha"],
    ]
    page.locator("#grid").press("q")  # the new key
    saved(page)
    expected = {names[0]: "alpha", names[1]: "alpha", names[2]: "c", names[3]: "c"}
    page.locator("#more").click()
    page.get_by_role("menuitem", name="Export and import").click()
    with page.expect_download() as download:
        page.get_by_text("CSV for --labels-file").click()
    rows = Path(download.value.path()).read_text().splitlines()
    assert {tuple(row.split(",")[:2]) for row in rows[1:]} == set(expected.items())
    other = tmp_path / "more.csv"
    other.write_text("file,label\n002-b.png,beta\nnobody.png,beta\n")
    page.get_by_label("File to import").set_input_files(other)
    page.get_by_text("1 label imported, 0 were there already, 0 conflicts, 1 unknown file").wait_for()
    page.get_by_role("button", name="Copy").click()
    page.locator("dialog [role=status]", has_text="5 pictures in").wait_for()
    copies = [path for path in tmp_path.glob("photos*/*/*.png") if path.parent.parent.name != "photos"]
    assert sorted(path.parent.name for path in copies) == ["alpha", "alpha", "beta", "c", "c"]
    keys.press("Escape")
    for which, many in (("labeled", 5), ("mine", 4)):  # what was imported nobody labeled here
        page.locator("#filter").select_option(which)
        page.locator("#foot", has_text=f"{many} pictures shown").wait_for()
    watched.check()
    assert server.labels() == expected | {"002-b.png": "beta"}


def test_names_are_text(tmp_path: Path, serve: Open, visit: Open) -> None:
    folder = digits(tmp_path / "photos", 2)
    evil = "<img src=x onerror=alert(1)>"
    next(folder.glob("*.png")).rename(folder / f"{evil}.png")
    (folder / "broken <b>.png").write_text("<svg onload='alert(1)'/>")
    watched = visit(serve(folder).address)
    page = watched.page
    page.on("dialog", lambda dialog: watched.errors.append(dialog.message))
    name_classes(page, f"{evil} class", "<b>bold</b>")
    page.locator("#search").fill(evil[:9])
    page.locator("#grid-1").wait_for(state="detached")
    assert current(page) == f"{evil}.png"
    page.locator("#grid").focus()
    page.keyboard.press("1")
    assert page.locator("#grid-0 .tag").inner_text() == f"{evil} class"
    page.keyboard.press("Enter")
    page.locator("#single figcaption").wait_for()
    assert evil in page.locator("#single .file").inner_text()
    assert page.locator("main img[src=x], main b:has-text('bold')").count() == 0
    saved(page)
    watched.check("422")  # of the file that is no picture


def test_pictures_that_do_not_come_are_asked_for_again(tmp_path: Path, serve: Open, visit: Open) -> None:
    folder = digits(tmp_path / "photos", 3)
    (folder / "zzz.png").write_text("no image")
    watched = visit(serve(folder).address)
    page = watched.page
    name_classes(page, "a", "b")
    back = partial(page.evaluate, "window.dispatchEvent(new Event('online'))")  # need not wait for the next look

    def fail(route: Any) -> None:
        route.abort() if "/0?" in route.request.url else route.fulfill(status=503)

    page.route("**/thumb/**", fail)
    page.reload()
    until(page, lambda: page.locator("#grid .waiting").count() == 7)
    words = "getComputedStyle(document.querySelector('#grid-0'), '::before').content"
    assert page.evaluate(words) == '"waits for the server"'
    page.unroute("**/thumb/**")
    back()
    page.locator("#grid-6.broken").wait_for()  # the one that is none
    page.locator("#filter").select_option("unreadable")
    until(page, lambda: current(page) == "zzz.png")
    page.locator("#filter").select_option("unlabeled")
    page.locator("#grid").focus()
    page.keyboard.press("Home")
    until(page, lambda: page.locator("#grid .waiting").count() == 0)
    wide = "[...document.querySelectorAll('#grid img, #single img')].map(image => image.naturalWidth)"
    assert page.evaluate(wide)[:7] == [32] * 6 + [0]
    page.route("**/image/**", fail)
    page.keyboard.press("Enter")
    page.locator("#single .waiting").wait_for()
    page.unroute("**/image/**")
    back()
    page.locator("#single .waiting").wait_for(state="detached")
    until(page, lambda: page.evaluate(wide)[-1] == 32)
    Image.new("RGB", (48, 48)).save(folder / current(page))  # another picture of that name
    page.locator("#more").click()
    page.get_by_role("menuitem", name="Look for new files").click()
    until(page, lambda: back() and page.evaluate(wide)[-1] == 48)
    watched.check("ERR_FAILED", "503", "422")


def test_a_page_that_is_pointed_at_us(tmp_path: Path, serve: Open, visit: Open) -> None:
    """A name of somebody else's leads to this machine, in the browser that has our page open."""
    server = serve(digits(tmp_path / "photos", 1))
    ours = visit(server.address)
    name_classes(ours.page, "a", "b")
    cookies = ours.page.context.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"], cookie["domain"]) for cookie in cookies] == [
        (True, "Strict", "127.0.0.1")
    ]
    assert ours.page.evaluate("document.cookie") == ""
    here = server.address.partition("/?")[0]
    evil = Watched(ours.page.context, server.address.replace("127.0.0.1", EVIL))
    assert evil.page.locator("body").inner_text() == '{"error":"this server answers only at its own address"}'
    asked = "([at, mode]) => fetch(`${at}/api/classes`, {method: 'POST', mode, credentials: 'include', body: '{\"id\": \"evil-0001\", \"do\": \"add\", \"name\": \"evil\"}', headers: {'Content-Type': mode === 'no-cors' ? 'text/plain' : 'application/json'}}).then(answer => answer.status, () => 'refused')"  # fmt: skip # noqa: E501
    assert evil.page.evaluate(asked, ["", "cors"]) == 403  # to the name, which leads here
    assert evil.page.evaluate(asked, [here, "cors"]) == "refused"  # to us, as another site
    assert evil.page.evaluate(asked, [here, "no-cors"]) in (0, "refused")  # arrives, or not; the answer is hidden
    assert ours.page.context.cookies() == cookies
    assert len(ours.page.evaluate("fetch('/api/state').then(answer => answer.json())")["classes"]) == 2
    ours.check()


def test_phone(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 20))
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    watched = visit(server.address, **phone)
    page = watched.page
    name_classes(page, "a", "b")
    for tab in ("guesses", "check", "train", "label"):
        page.locator(f"#tab-{tab}").tap()
        page.wait_for_timeout(150)
        assert page.evaluate("[document.documentElement.scrollWidth, document.body.scrollHeight]") == [360, 740]
    page.locator("#grid-0").wait_for()
    lefts = {page.locator(f"#grid-{i}").bounding_box()["x"] for i in range(6)}
    assert len(lefts) == 3  # pictures side by side
    touch = {"pointerType": "touch", "button": 0, "bubbles": True}
    page.locator("#grid-4").dispatch_event("pointerdown", touch)
    page.locator("#grid-4.chosen").wait_for()  # held down
    page.locator("#grid-4").dispatch_event("pointerup", touch)
    for event in ("pointerdown", "pointerup"):
        page.locator("#grid-5").dispatch_event(event, touch)
    assert {tile.get_attribute("id") for tile in page.locator("#grid .chosen").all()} == {"grid-4", "grid-5"}
    page.get_by_text("Select none").tap()
    page.set_viewport_size({"width": 640, "height": 360})  # on its side: classes beside the pictures
    until(page, lambda: page.locator("#grid").bounding_box()["width"] < 500)
    assert page.locator("#grid").bounding_box()["height"] > 100
    assert page.locator(".side").bounding_box()["height"] > 250
    page.set_viewport_size(phone["viewport"])
    until(page, lambda: page.locator(".side").bounding_box()["y"] > 360)
    until(page, lambda: page.locator("#grid-1").bounding_box()["width"] < 120)  # laid out again
    name = page.locator("#grid-1").get_attribute("aria-label").split(",")[0]
    page.locator("#grid-1").tap()
    page.locator("#single:not([hidden])").wait_for()
    wide = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 361).map(e => e.outerHTML)"  # fmt: skip # noqa: E501
    assert page.evaluate(wide) == []
    page.locator("#more").tap()
    page.get_by_role("menuitem", name="Edit the classes").tap()
    page.get_by_label("Name of a").wait_for()
    assert page.evaluate(wide) == []
    page.get_by_role("button", name="Close").tap()
    page.locator(f".side [data-value='{'ab'.index(name[4])}']").tap()
    saved(page)
    assert not page.locator("#single").get_attribute("aria-label").startswith(name)  # the next one
    for button in page.locator(".side .class:visible, .tabs button:visible").all():
        assert button.bounding_box()["height"] >= 35
    watched.check("404")
    assert server.labels() == {name: name[4]}


def test_calm_dark_and_said_aloud(tmp_path: Path, serve: Open, visit: Open) -> None:
    server = serve(digits(tmp_path / "photos", 20))
    watched = visit(server.address, reduced_motion="reduce", color_scheme="dark")
    page = watched.page
    name_classes(page, "a", "b")
    page.locator("#grid-0").click()
    page.keyboard.press("Shift+ArrowRight")
    moving = "document.getAnimations().length + [...document.querySelectorAll('*')].filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"  # fmt: skip # noqa: E501
    page.keyboard.press("1")
    assert page.evaluate(moving) == 0
    assert "a. Undo with" in page.locator("#spoken").inner_text()
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", paper)[:3])) < 60
    # every control has a name, every picture says what it is and whether it is selected
    nameless = "[...document.querySelectorAll('button, input, select, a')].filter(e => e.checkVisibility() && !(e.ariaLabel || e.innerText.trim() || [...(e.labels ?? [])].some(l => l.control === e))).map(e => e.outerHTML)"  # fmt: skip # noqa: E501
    assert page.evaluate(nameless) == []
    grid = page.locator("#grid")
    assert grid.get_attribute("role") == "listbox"
    active = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
    assert active.get_attribute("role") == "option"
    assert active.get_attribute("aria-selected") == "true"
    assert active.get_attribute("aria-setsize") == "40"
    assert page.locator("#grid-0").get_attribute("aria-label") == "000-a.png, a"
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Label"
    # keys that label do so only where the pictures have the focus
    page.locator("#search").fill("1")
    page.locator("#tab-label").focus()
    page.keyboard.press("2")
    saved(page)
    page.locator("#tab-train").click()
    page.locator("#every").wait_for()
    assert page.evaluate(nameless) == []
    watched.check()
    assert set(server.labels().values()) == {"a"}


def test_size_of_the_page(tmp_path: Path, serve: Open, visit: Open) -> None:
    """No framework, little to load, and few nodes however many pictures there are."""
    server = serve(digits(tmp_path / "photos", 170, (0, 1, 2)))
    watched = visit(server.address, viewport={"width": 2560, "height": 1440})
    page = watched.page
    page.locator("#grid-0").wait_for()
    sent = page.evaluate("performance.getEntriesByType('resource').filter(e => /static|\\/$/.test(e.name)).reduce((sum, e) => sum + e.transferSize, 0)")  # fmt: skip # noqa: E501
    assert 10_000 < sent < 100_000
    assert page.evaluate("document.querySelectorAll('#grid *').length") < 300
    page.evaluate("document.querySelector('#grid').scrollTop = 1e6")
    page.locator("#grid-509").wait_for()
    assert page.evaluate("document.querySelectorAll('#grid *').length") < 300
    watched.check()
