"""CSV files: two parsers that agree with each other and with a loop over Python's, whatever the file and the pieces."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest

from mixmatch.data.user import columns, csv_file
from mixmatch.data.user.columns import Names, NumberStore, Places
from mixmatch.data.user.csv_file import DECIMAL_COMMA, MARKS, read_csv
from mixmatch.data.user.table import read_table
from mixmatch.errors import MixMatchError
from mixmatch.text import from_cell

NUMBERS = ["1", "2.5", " 4 ", "+5", "1_0", "", "NA", "nan", "?", "nA", "-0", "00012", "1.", "٣", "inf", "-nan", "1,5"]
TEXT = ["red", "blue", "green ", "x y", "猫", "'=1", "'cat'", "NA", "\tq", "\u2028u", "yes,no", 'qu"ote', "two\nlines"]


def nasty(seed: int) -> bytes:
    """A table of numbers, names and identifiers in which anything may be wrong."""
    some = random.Random(seed)
    mark = some.choice(",,,;\t")
    end = some.choice(["\n", "\n", "\n", "\r\n", "\r"])
    quoting = some.choice([0, 0, 0, 0.2, 1])
    kinds = some.choices("nnnitck", k=some.randint(1, 5))

    def cell(kind: str, row: int) -> str:
        if some.random() < 0.004:
            return some.choice(TEXT + NUMBERS)
        if kind == "n":
            text = f"{some.gauss(0, 10):.6g}"
            return text.replace(".", ",") if mark == ";" and some.random() < 0.3 else text
        made = {"i": str(some.randint(0, 20)) if row % 7 else "", "t": some.choice(TEXT[:3]), "k": str(row)}
        return made.get(kind, "5" if some.random() < 0.99 else "5.0")

    def quoted(text: str) -> str:
        needs = any(character in text for character in f'{mark}"\n\r')
        return '"' + text.replace('"', '""') + '"' if needs or some.random() < quoting else text

    lines = [mark.join(quoted(f" {kind}{i}") for i, kind in enumerate([*kinds, "label", "part", "id"]))]
    for row in range(some.choice([3, 25, 120])):
        ends = [some.choice(["cat", "dog", "1", "'=x", ""]), some.choice(["", "train", "test"]), some.choice(["7", ""])]
        line = mark.join(map(quoted, [*(cell(kind, row) for kind in kinds), *ends]))
        odd = {0: line + mark, 1: "", 2: mark * (len(kinds) + 2), 3: "  ", 4: line + '"'}
        lines.append(odd.get(some.randrange(1200), line))
    content = (end.join(lines) + some.choice([end, ""])).encode()
    content = content.replace(b"dog", b"d\xe9g") if some.random() < 0.02 else content
    content = content.replace(b"dog", b"d\0g") if some.random() < 0.02 else content
    return b"\xef\xbb\xbf" + content if some.random() < 0.2 else content


def plainly(path: Path) -> object:
    """What a loop over Python's parser makes of a file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            mark = max(MARKS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
            file.seek(0)
            reader = csv.reader(file, delimiter=mark)
            header, rows, lines = [from_cell(name.strip()) for name in next(reader)], [], []
            for row in reader:
                if not any(map(str.strip, row)):
                    continue
                if len(row) != len(header):
                    return f"line {reader.line_num} has {len(row)} field"
                cells = [cell.strip() for cell in row]
                decimal = [mark == ";" and bool(DECIMAL_COMMA.fullmatch(cell)) for cell in cells]
                rows.append([c.replace(",", ".") if d else from_cell(c) for c, d in zip(cells, decimal, strict=True)])
                lines.append(reader.line_num)
        return header, list(zip(*rows, strict=True)), lines
    except UnicodeDecodeError:
        return "not text in UTF-8"


def ours(path: Path) -> object:
    """The same from the reader."""
    try:
        table = read_csv(path)
    except MixMatchError as error:
        return str(error)
    return list(table.header), [tuple(table.text(name)) for name in table.header], list(table.lines)


def whole(path: Path) -> str:
    """All that reading a table says and gives."""
    try:
        user = read_table(path, label_column=f"label{len(read_csv(path).header) - 3}")
    except MixMatchError as error:
        return str(error)
    found = [finding.as_dict() for finding in user.findings]
    values = [user.labels.tolist(), user.classes, list(user.files), user.part, found, user.encoding.to_dict()]
    return json.dumps([*values, user.inputs.tobytes().hex()])


@pytest.mark.parametrize("piece", [200, csv_file.PIECE])
def test_both_parsers_and_a_plain_loop_agree(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(csv_file, "PIECE", piece)
    path, fast = tmp_path / "t.csv", 0
    by_arrow = csv_file._Reader._by_arrow

    def counted(*arguments: object) -> object:
        nonlocal fast
        block = by_arrow(*arguments)
        fast += block is not None
        return block

    monkeypatch.setattr(csv_file._Reader, "_by_arrow", counted)
    for seed in range(120):
        path.write_bytes(nasty(seed))
        expected = plainly(path)
        found = ours(path)
        assert (expected in found) if isinstance(expected, str) else found == expected, seed
        with_arrow = whole(path)
        with monkeypatch.context() as patch:
            patch.setattr(csv_file, "_arrow", lambda: None)
            assert whole(path) == with_arrow, seed
    assert fast > 100 if piece == 200 else fast == 0  # the first piece is Python's


def test_numbers_that_end_in_text_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "PIECE", 100)
    path = tmp_path / "t.csv"
    path.write_text("x,y,label\n" + "".join(f"{i}.0,{i % 3},{'ab'[i % 2]}\n" for i in range(200)) + "n.d.,1,a\n")
    table = read_csv(path, {"label"})
    assert list(table.text("x"))[-2:] == ["199.0", "n.d."]
    assert isinstance(table.column("y"), np.ndarray)
    messages = [finding.message for finding in read_table(path).findings]
    assert "column 'x' holds numbers, but also 'n.d.': left out" in messages


def test_numbers_that_are_all_the_same_are_shown_as_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y,label\n" + "".join(f"{i},05.0,{'ab'[i % 2]}\n" for i in range(30)))
    assert "column 'y' is '05.0' in every row: left out" in [f.message for f in read_table(path).findings]


def test_numbers_that_do_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "IN_MEMORY", 100)
    store, random = NumberStore(3), np.random.default_rng(0)
    blocks = [random.normal(size=(3, rows)) for rows in (1, 50, 7)]
    for block in blocks:
        store.add(list(block))
    for column in range(3):
        np.testing.assert_array_equal(store.column(column), np.concatenate([block[column] for block in blocks]))
    monkeypatch.setattr(csv_file, "PIECE", 300)
    path = tmp_path / "t.csv"
    path.write_text("x,label\n" + "".join(f"{i / 7},{'ab'[i % 2]}\n" for i in range(500)))
    np.testing.assert_array_equal(read_csv(path, ()).column("x"), [float(repr(i / 7)) for i in range(500)])


def test_names_and_places() -> None:
    names = Names(["a", "b", "c"], np.array([2, 0, 2], np.int32))
    assert ([*names], names[0], [*names[1:]]) == (["c", "a", "c"], "c", ["a", "c"])
    assert list(names.counts().items()) == [("c", 2), ("a", 1)]
    assert names.each(len, int).tolist() == [1, 1, 1]
    places = Places("line ", np.array([2, 5, 9]))
    assert [*places[np.array([2, 0])]] == ["line 9", "line 2"]
    assert [*places[1:]] == ["line 5", "line 9"]
    many = Places("row ", range(10**12))  # too many to be written out
    assert [*many[10**11 : 10**11 + 2]] == ["row 100000000000", "row 100000000001"]


def test_a_hundred_thousand_columns(tmp_path: Path) -> None:
    """Their header is one cell too long for the delimiters it does not have."""
    path, columns = tmp_path / "t.csv", 100_000
    rows = [",".join(map(str, np.random.default_rng(row).integers(0, 9, columns))) for row in range(2)]
    path.write_text(",".join(f"c{i}" for i in range(columns)) + f",label\n{rows[0]},a\n{rows[1]},b\n")
    table = read_csv(path, {"label"})
    assert len(table.header) == columns + 1
    assert table.column("c99999").tolist() == [float(row.rpartition(",")[2]) for row in rows]
    path.write_text("c," * 70_000 + "label\n")
    with pytest.raises(MixMatchError, match="several columns named 'c'"):
        read_csv(path)
    path.write_text(f'"{"c" * 200_000}",label\n1,a\n')
    with pytest.raises(MixMatchError, match="line 1 has a cell of more than 131,072 characters"):
        read_csv(path)


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of zeros, as a disk leaves them, is not read to its end."""
    monkeypatch.setattr(csv_file, "MOST_LINE", 1 << 22)
    with (path := tmp_path / "a.csv").open("wb") as file:
        for start in (b"", b"a,label\n1,x\n"):
            file.write(start)
            file.truncate(2**40)
            with pytest.raises(MixMatchError, match=r"a.csv line \d: a line has more than 4,194,304 bytes"):
                read_csv(path)


def test_labels_of_thousands_of_digits(tmp_path: Path) -> None:
    """More than Python takes for a number."""
    path, long = tmp_path / "t.csv", "1" * 5000
    path.write_text("x,label\n" + "".join(f"{i % 7},{long if i % 2 else -9}\n" for i in range(20)))
    assert read_table(path).classes == ("-9", long)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("cells", "features"), [
    (["1.7e308", "-1.7e308"], [1, -1]),
    (["1.7e308", "1.6e308", "1.5e308"], [1.224745, 0, -1.224745]),
    (["1e300", "1", "2"], [1.414214, -0.707107, -0.707107]),
])  # fmt: skip
def test_sums_that_overflow(cells: list[str], features: list[float], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,label\n" + "".join(f"{cell},a\n{cell},b\n" for cell in cells))
    np.testing.assert_allclose(read_table(path).inputs[::2, 0], features, rtol=1e-5, atol=1e-6)
