"""Errors a user can cause. Each is one line that says what is wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mixmatch.text import printable


class MixMatchError(Exception):
    """Something the user can fix. The command line prints its message alone and exits with 2.

    It names files and classes, which may be called anything: it is one line all the same, and without escape codes.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


@contextmanager
def explaining(what: str, remedy: str = "") -> Iterator[None]:
    """Make one line of a file system's error: what cannot be done, why, and the remedy.

    >>> with explaining("cannot write runs/a", "choose another folder with out="):
    ...     raise OSError(30, "Read-only file system")
    Traceback (most recent call last):
    mixmatch.errors.MixMatchError: cannot write runs/a: Read-only file system; choose another folder with out=
    """
    try:
        yield
    except OSError as error:
        raise MixMatchError(f"{what}: {error.strerror or error}{remedy and f'; {remedy}'}") from None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and every error in its cause chain."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: Exception) -> str:
    """The beginning of an error of another library, whose messages may be pages long."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    return next(iter(difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=0.5)), None)


def unknown(what: str, name: str, known: Iterable[str], of: str = "") -> MixMatchError:
    """The error for a name that does not exist: with the nearest one that does, or else with all of them.

    >>> str(unknown("method", "mixmach", ["mixmatch", "supervised"]))
    "unknown method 'mixmach': did you mean 'mixmatch'?"
    >>> str(unknown("setting", "size", ["K", "T"], of="method 'mixmatch'"))
    "unknown setting 'size' of method 'mixmatch' (known: K, T)"
    """
    names = sorted(known)
    near = nearest(name, names)
    hint = f": did you mean '{near}'?" if near else f" (known: {', '.join(names) or 'none'})"
    return MixMatchError(f"unknown {what} '{name}'{f' of {of}' if of else ''}{hint}")


def not_installed(what: str, package: str, extra: str, instead: str = "") -> MixMatchError:
    """The error for what takes an optional package.

    >>> str(not_installed("ray=auto", "Ray", "ray"))
    "ray=auto needs Ray, which is not installed: pip install 'mixmatch[ray]'"
    """
    return MixMatchError(f"{what} needs {package}, which is not installed: pip install 'mixmatch[{extra}]'{instead}")
