"""Text of others: shown without its escape codes, written without its formulas, and read back as it was."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmatch.data.user.csv_file import read_csv
from mixmatch.text import csv_line, from_cell, printable, to_cell

RUNS = ["=1+1", "+49 30", "-x", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1", "＠a", "-1+1", "+", "-1e5x"]
HARMLESS = ["cat", "", "-1", "+2.5", "-1e-5", "-.5", "a=b", "'cat'", "'", "1-2", "日本", "x-1"]

HOSTILE = "'=+-@\t\r\n＝1e.a "


@pytest.mark.parametrize("value", RUNS)
def test_what_a_spreadsheet_would_run_becomes_text(value: str) -> None:
    assert to_cell(value) == f"'{value}"
    assert from_cell(to_cell(value)) == value


@pytest.mark.parametrize("value", HARMLESS)
def test_other_cells_stay_as_they_are(value: str) -> None:
    assert to_cell(value) == from_cell(value) == value


@given(st.text(HOSTILE) | st.text())
def test_every_cell_comes_back(value: str) -> None:
    assert from_cell(to_cell(value)) == value
    assert to_cell(value)[:1] not in ("=", "@", "\t", "\r", "\n", "＝")
    if to_cell(value)[:1] in ("+", "-"):
        float(to_cell(value))


def test_numbers_and_nothing_are_as_the_csv_module_writes_them() -> None:
    assert [to_cell(value) for value in (-1, -1.5, None, True)] == ["-1", "-1.5", "", "True"]


def test_a_file_with_such_cells_is_read_as_it_was_meant(tmp_path: Path) -> None:
    """By the reader of tables, which also makes nothing of apostrophes that somebody else wrote."""
    path, cells = tmp_path / "cells.csv", [*RUNS, *filter(None, HARMLESS), "''=1"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(to_cell, ["=file", "label"]))
        writer.writerows([to_cell(cell), "a"] for cell in cells)
    table = read_csv(path)
    assert table.header == ("=file", "label")
    assert list(table.column("=file")) == cells


@given(st.lists(st.text(HOSTILE + ',;"') | st.text(), min_size=2, max_size=4))
def test_a_line_is_one_row_to_every_program(cells: list[str]) -> None:
    """Whichever of a comma, a semicolon and a tab it takes for the end of a cell."""
    line = csv_line(cells)
    (row,) = csv.reader(io.StringIO(line, newline=""))
    assert list(map(from_cell, row)) == cells
    unquoted = re.sub('"(?:[^"]|"")*"', "", line)
    assert unquoted.endswith("\n")
    assert not re.search('[;\t\r\n"]', unquoted[:-1])


def test_a_terminal_gets_no_codes() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egpj.exe \u2066 \udc9b \x00 \r"
    shown = printable(hostile)
    assert shown == r"\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egpj.exe \u2066 \udc9b \x00 \r"
    shown.encode()  # lone surrogates would not
    assert printable("naïve 日本 👨‍👩‍👧 a\tb") == "naïve 日本 👨‍👩‍👧 a\tb"
    assert printable("one\ntwo") == r"one\ntwo"
    assert printable("one\ntwo\x1b", lines=True) == "one\ntwo\\x1b"


@given(st.text())
def test_what_is_shown_has_no_control_characters(value: str) -> None:
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", printable(value))
