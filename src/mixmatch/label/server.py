"""The server of the page: every route, each a few lines over the book, the view and the pictures.

Routes run in threads; the book's lock orders them. Nothing here imports torch: what needs it runs in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mixmatch.errors import MixMatchError
from mixmatch.label import pictures
from mixmatch.label.answers import (
    BODY,
    IMPORT,
    WHO,
    Malformed,
    as_error,
    as_json,
    clean_name,
    http_error,
    id_of,
    jpeg_headers,
    on_bug,
    query_number,
    read_json,
    share_of,
    who_is,
    whole_number,
)
from mixmatch.label.body import Body
from mixmatch.label.book import SOURCES, Change, Refused
from mixmatch.label.desk import Desk
from mixmatch.label.exchange import to_csv, to_label_studio
from mixmatch.label.page import serve_static
from mixmatch.storage import read_plain
from mixmatch.text import printable

MOST_CHANGES, MOST_PICTURES = 1000, 200_000
SEEN = 6
"""The least sure pictures of a group that must be seen before it is confirmed."""
REPORT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
"""For a run's report: a page without scripts that holds everything itself, shut off from this one."""


MOST_REPORT = 1 << 28
"""Bytes of a report, at most."""


class Elsewhere(MixMatchError):
    """A request whose numbers belong to another listing."""


def make_app(desk: Desk) -> Starlette:
    """The application, without the guard that has to stand before it."""
    api, view, trainings = Api(desk), desk.view, desk.trainings
    asked: dict[str, Callable[[str, Request], Body]] = {
        "state": lambda who, request: view.state(who),
        "changes": lambda who, request: view.changes(who, query_number(request, "since", 0)),
        "exam": api.exam,
        "next": lambda who, request: desk.thinking.next(min(500, max(1, query_number(request, "k", 50)))),
        "suspects": lambda who, request: desk.thinking.suspects(),
        "groups": lambda who, request: view.groups(share_of(request, "least", 0.9)),
        "train": lambda who, request: trainings.status(),
    }
    changed: dict[str, Callable[[str, Body], Body]] = {
        "labels": api.labels,
        "undo": api.undo,
        "redo": lambda who, body: api.undo(who, body, redo=True),
        "classes": api.classes,
        "exam": api.draw_exam,
        "rescan": api.rescan,
        "confirm": api.confirm,
    }
    done: dict[str, Callable[[str, Body], Body]] = {
        "train": lambda who, body: api.training(lambda: trainings.start(body)),
        "train/stop": lambda who, body: api.training(trainings.stop),
        "train/auto": lambda who, body: api.training(lambda: trainings.automatic(body)),
        "export/folders": api.export_folders,
    }
    routes = [
        Route("/", lambda request: serve_static(request, "index.html")),
        Route("/static/{name}", lambda request: serve_static(request, request.path_params["name"])),
        Route("/thumb/{n}", api.thumb),
        Route("/image/{n}", api.image),
        Route("/api/images", api.images),
        Route("/api/picture/{n}", api.get(api.picture, locked=False)),
        Route("/api/report/{run}", api.report),
        Route("/api/export", api.export),
        Route("/api/who", api.who, methods=["POST"]),
        Route("/api/import", api.post(api.import_, IMPORT), methods=["POST"]),
        *(Route(f"/api/{path}", api.get(handler)) for path, handler in asked.items()),
        *(Route(f"/api/{path}", api.post(handler), methods=["POST"]) for path, handler in changed.items()),
        *(Route(f"/api/{path}", api.post(handler, changes=False), methods=["POST"]) for path, handler in done.items()),
    ]
    handlers = {
        HTTPException: http_error,
        Elsewhere: lambda request, error: JSONResponse({"error": str(error), "listing": desk.book.listing.id}, 410),
        MixMatchError: as_error,
        OSError: api.cannot_write,
        Exception: on_bug,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class Api:
    """The routes."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.book, self.view = desk, desk.book, desk.view

    # ----------------------------------------------------------------------------------------------- around each route

    def get(self, handler: Callable[[str, Request], Body], *, locked: bool = True) -> Callable[[Request], Any]:
        """A route that answers with JSON. What takes long is not `locked`: nobody's labels wait for it."""

        def route(request: Request) -> Response:
            with self.book.lock if locked else nullcontext():
                return as_json(request, handler(self.who_is(request), request))

        return route

    def post(
        self, handler: Callable[[str, Body], Body], limit: int = BODY, *, changes: bool = True
    ) -> Callable[[Request], Any]:
        """A route that takes JSON; it answers with what changed since the page last looked, too. One that changes
        nothing is not locked: nobody's labels wait for it."""

        async def route(request: Request) -> Response:
            asked = await read_json(request, limit)
            return await run_in_threadpool(work, request, asked)

        def work(request: Request, asked: Body) -> Response:
            who = self.who_is(request)
            with self.book.lock if changes else nullcontext():
                if asked.get("listing", self.book.listing.id) != self.book.listing.id:
                    raise Elsewhere("the list of pictures has changed")
                since = whole_number(asked, "since", seq := self.book.state.seq)
                body = handler(who, asked)
                body = self.view.changes(who, since if since <= seq else None) | body if changes else body
            return as_json(request, body, 409 if body.get("conflicts") else 200)

        return route

    def cannot_write(self, request: Request, error: Exception) -> Response:
        """What is beside the labels. Those themselves have a line of their own."""
        reason = getattr(error, "strerror", None) or error
        line = f"cannot write to {printable(str(self.desk.home))}: {reason}; fix that, then try again"
        return as_error(request, MixMatchError(line))

    def who_is(self, request: Request) -> str:
        return who_is(request, self.desk.user)

    # -------------------------------------------------------------------------------------------------------- looking

    def images(self, request: Request) -> Response:
        first = query_number(request, "from", 0)
        with self.book.lock:
            headers = {"ETag": self.view.etag(first), "Cache-Control": "private, no-cache"}
            if request.headers.get("if-none-match") == headers["ETag"]:
                return Response(status_code=304, headers=headers)
            body = self.view.images(first)
        return as_json(request, body, headers=headers)

    def exam(self, who: str, request: Request) -> Body:
        state, numbers, gone = self.book.state, self.book.listing.numbers, self.book.listing.gone
        drawn = {file: n for file in state.exam if (n := numbers.get(file)) is not None and n not in gone}
        return {"n": list(drawn.values()), "left": [n for file, n in drawn.items() if file not in state.marks]}

    def picture(self, who: str, request: Request) -> Body:
        return self.desk.about(self._number(request))

    async def thumb(self, request: Request) -> Response:
        return await self._jpeg(request, pictures.THUMB)

    async def image(self, request: Request) -> Response:
        return await self._jpeg(request, pictures.LARGE)

    def _number(self, request: Request) -> int:
        text = request.path_params["n"]
        if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) < len(self.book.listing)):
            raise HTTPException(404, "there is no such picture")
        return int(text)

    async def _jpeg(self, request: Request, side: int) -> Response:
        # No lock: whoever holds it may be waiting for the disk, and all other answers would wait with this one.
        n, listing = self._number(request), self.book.listing
        key = listing.identity(n)
        headers = jpeg_headers(key, side, fresh=request.query_params.get("v") == listing.version)
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        try:
            jpeg = self.desk.pictures.recent(key, side) or await run_in_threadpool(self.desk.jpeg, n, side)
        except FileNotFoundError:
            raise HTTPException(404, "this picture is gone") from None
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    def report(self, request: Request) -> Response:
        path = self.desk.trainings.report(request.path_params["run"])
        try:
            content = None if path is None else read_plain(path, MOST_REPORT)
        except OSError:
            content = None
        if content is None:
            raise HTTPException(404, "there is no such report")
        return Response(content, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": REPORT})

    # ------------------------------------------------------------------------------------------------------- changing

    async def who(self, request: Request) -> Response:
        name = clean_name((await read_json(request, BODY)).get("who"))
        if not name:
            raise HTTPException(422, "a name has 1 to 40 characters")
        answer = JSONResponse({"who": name})
        answer.set_cookie(WHO, quote(name), httponly=True, samesite="strict", path="/", max_age=365 * 86400)
        return answer

    def labels(self, who: str, asked: Body) -> Body:
        items = asked.get("changes")
        if not isinstance(items, list) or len(items) > MOST_CHANGES:
            raise Malformed(f"`changes` must be a list of at most {MOST_CHANGES}")
        changes = [self._change(item) for item in items]
        found = self.book.label(who, changes)
        return {"saved": [change.id for change in changes], "conflicts": self._numbered(found)}

    def _numbered(self, conflicts: Sequence[Body]) -> list[Body]:
        """Conflicts with numbers in place of files."""
        found = []
        for conflict in conflicts:
            n = self.book.listing.numbers.get(conflict["file"], -1)
            found.append({"n": n} | {name: value for name, value in conflict.items() if name != "file"})
        return found

    def _change(self, item: Any) -> Change:
        if not isinstance(item, dict):
            raise Malformed("a change must be an object")
        numbers, label, source = item.get("n"), item.get("label"), item.get("source", "key")
        before = item.get("before")
        if not isinstance(numbers, list) or not 0 < len(numbers) <= MOST_PICTURES:
            raise Malformed("`n` must be a list of numbers")
        before = before if isinstance(before, list) else [before] * len(numbers)
        if len(before) != len(numbers) or not all(value is None or isinstance(value, str) for value in before):
            raise Malformed("`before` must be a value, or one for each picture")
        if not (label is None or isinstance(label, str)) or source not in SOURCES:
            raise Malformed("`label` must be a text or null, `source` a known word")
        return Change(id_of(item), self._files(numbers), label, before, source)

    def _files(self, numbers: Sequence[Any]) -> list[str]:
        files, most = self.book.listing.files, len(self.book.listing)
        if not all(type(n) is int and 0 <= n < most for n in numbers) or len(set(numbers)) != len(numbers):
            raise Malformed("a picture's number is wrong, or there twice")
        return [files[n] for n in numbers]

    def undo(self, who: str, asked: Body, *, redo: bool = False) -> Body:
        done, numbers = self.book.undo(who, id_of(asked), redo=redo), self.book.listing.numbers
        n, kept = ([numbers[file] for file in done[name] if file in numbers] for name in ("files", "kept"))
        return {"undone": {"what": done["what"], "left": done["left"], "n": n, "kept": kept}}

    def classes(self, who: str, asked: Body) -> Body:
        try:
            self.book.act(who, id_of(asked), str(asked.get("do")), asked)
        except (KeyError, TypeError):
            raise Malformed("a field is missing") from None
        return {}

    def draw_exam(self, who: str, asked: Body) -> Body:
        more = whole_number(asked, "more", 50)
        if not 1 <= more <= 2000:
            raise Refused("an exam has 1 to 2,000 pictures")
        return {"drawn": [self.book.listing.numbers[file] for file in self.book.draw_exam(who, id_of(asked), more)]}

    def rescan(self, who: str, asked: Body) -> Body:
        self.desk.rescan()
        return {}

    def confirm(self, who: str, asked: Body) -> Body:
        """Label a group as the model guesses. Exactly the pictures named, and only after the least sure were seen."""
        change = self._change({**asked, "label": asked.get("class"), "before": None, "source": "confirm"})
        seen = set(self._files(asked["seen"])) if isinstance(asked.get("seen"), list) else set()
        numbers = [self.book.listing.numbers[file] for file in change.files]
        if self.view.guesses is None or asked.get("run") != self.view.guesses.run:
            raise Refused("the guesses now come from another model: look at them again")
        unseen = [n for n in self.view.least_sure(numbers, SEEN) if self.book.listing.files[n] not in seen]
        if unseen:
            raise Refused(f"look at the {min(SEEN, len(numbers))} least sure of them first")
        found = self.book.label(who, [change])
        return {"saved": [change.id], "conflicts": self._numbered(found)}

    def import_(self, who: str, asked: Body) -> Body:
        kind, text = asked.get("as"), asked.get("text", "")
        if kind not in ("csv", "ls", "folders") or not isinstance(text, str):
            raise Malformed("`as` must be csv, ls or folders, `text` what the file holds")
        return {"imported": self.desk.import_labels(who, id_of(asked), kind, text)}

    def export(self, request: Request) -> Response:
        kind = request.query_params.get("as")
        with self.book.lock:
            if kind == "csv":
                content, media, name = to_csv(self.book), "text/csv; charset=utf-8", "labels.csv"
            elif kind == "ls":
                content, media, name = to_label_studio(self.book), "application/json", "label-studio.json"
            else:
                raise HTTPException(400, "`as` must be csv or ls")
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=media, headers=headers)

    def export_folders(self, who: str, asked: Body) -> Body:
        if asked.get("how") not in ("copy", "link"):
            raise Malformed("`how` must be copy or link")
        return self.desk.export_folders(links=asked["how"] == "link")

    def training(self, act: Callable[[], None]) -> Body:
        with self.book.lock:
            act()
            return self.desk.trainings.status()
