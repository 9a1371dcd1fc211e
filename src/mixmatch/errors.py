"""Errors a user can cause. Each is one line that says what is wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator


class MixMatchError(Exception):
    """Something the user can fix. The command line prints its message alone and exits with 2."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and every error in its cause chain."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def unknown(what: str, name: str, known: Iterable[str]) -> MixMatchError:
    """The error for a name that does not exist, with the nearest one that does.

    >>> str(unknown("method", "mixmach", ["mixmatch", "supervised"]))
    "unknown method 'mixmach': did you mean 'mixmatch'? (known: mixmatch, supervised)"
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else ""
    return MixMatchError(f"unknown {what} '{name}'{hint} (known: {', '.join(names)})")
