"""Data that is open: read once, split, and handed on to whoever needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixmatch.data.source import Source
from mixmatch.data.split import Split

if TYPE_CHECKING:
    from mixmatch.data.user.rows import UserData


@dataclass(frozen=True)
class Basis:
    """What a model is evaluated on, in words. If there is nothing, `missing` says why and what would help.

    >>> Basis("the 40 test images").sentence
    'Evaluated on the 40 test images.'
    """

    on: str = ""
    missing: str = ""

    @property
    def sentence(self) -> str:
        text = f"evaluated on {self.on}" if self.on else self.missing
        return f"{text[:1].upper()}{text[1:]}."


@dataclass(frozen=True)
class Data:
    """A data set and its split. `user` is what was read, if it is a user's own data: file names and findings."""

    source: Source
    split: Split
    basis: Basis
    user: UserData | None = None
