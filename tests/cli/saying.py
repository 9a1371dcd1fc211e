"""What a command that refuses says."""

from __future__ import annotations

from typing import Any


def one_line(result: Any, *said: str) -> None:
    """One line on standard error, with these words in it, and nothing else."""
    assert (result.code, result.out) == (2, ""), result
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1, result.err
    for words in said:
        assert words in result.err
