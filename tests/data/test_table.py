"""Tables: what numpy and scikit-learn make of the same rows, and everything a spreadsheet can get wrong."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from mixmatch.classifier import Classifier
from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.csv_file import read_csv
from mixmatch.data.user.encoding import Categorical, Encoding, Numeric, fit_categories
from mixmatch.data.user.rows import UserData
from mixmatch.data.user.table import read_rows, read_table
from mixmatch.errors import MixMatchError
from mixmatch.networks import build

PETS = """weight,color,note,label
4.0,black,ok,cat
,white,ok,cat
30,black,ok,dog
10,?,ok,dog
6,brown,ok,
NA,white,ok,
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "own.csv"
    path.write_text(text, encoding="utf-8")
    return path


def kinds(user: UserData) -> dict[str, str]:
    return {finding.kind: finding.message for finding in user.findings}


def test_by_hand(tmp_path: Path) -> None:
    user = read_table(write(tmp_path, PETS))
    assert user.classes == ("cat", "dog")
    assert user.labels.tolist() == [0, 0, 1, 1, UNKNOWN, UNKNOWN]
    assert user.files[0] == "line 2"
    weight = np.array([4, 8, 30, 10, 6, 8.0])  # the median of 4, 6, 10, 30 is 8
    np.testing.assert_allclose(user.inputs[:, 0], (weight - weight.mean()) / weight.std(), rtol=1e-6)
    assert user.encoding.feature_names == ["weight", "color=(missing)", "color=black", "color=brown", "color=white"]
    hot = [2, 4, 2, 1, 3, 4]  # black white black (missing) brown white
    np.testing.assert_array_equal(user.inputs[:, 1:], np.eye(5)[hot][:, 1:])
    assert user.inputs.dtype == np.float32
    assert kinds(user).keys() == {"missing-values", "constant-column"}
    assert "3 missing values in 2 columns (weight 2, color 1)" in kinds(user)["missing-values"]
    assert "'note' is 'ok' in every row" in kinds(user)["constant-column"]


def test_breast_cancer_as_scikit_learn_does_it(tmp_path: Path) -> None:
    data = load_breast_cancer()
    x = data.data.copy()
    random = np.random.default_rng(0)
    x[random.random(x.shape) < 0.05] = np.nan
    test = random.random(len(x)) < 0.3
    labels = np.where((random.random(len(x)) < 0.2) | test, data.target_names[data.target], "")
    rows = [
        ",".join(["" if np.isnan(v) else repr(float(v)) for v in row] + [label, "test" if t else "train"])
        for row, label, t in zip(x, labels, test, strict=True)
    ]
    header = ",".join([name.replace(" ", "_") for name in data.feature_names] + ["diagnosis", "part"])
    path = write(tmp_path, "\n".join([header, *rows]))
    user = read_table(path, label_column="diagnosis", part_column="part")
    imputer = SimpleImputer(strategy="median").fit(x[~test])
    scaler = StandardScaler().fit(imputer.transform(x[~test]))
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    np.testing.assert_allclose(user.inputs, scaler.transform(imputer.transform(x[order])), rtol=1e-4, atol=1e-5)
    assert user.num_train == (~test).sum()
    assert [user.classes[label] if label >= 0 else "" for label in user.labels] == labels[order].tolist()


def test_encoding_survives_json_and_new_rows(tmp_path: Path) -> None:
    user = read_table(write(tmp_path, PETS))
    encoding = Encoding.from_dict(json.loads(json.dumps(user.encoding.to_dict())))
    assert encoding == user.encoding
    new = read_csv(write(tmp_path, "color,weight,more\npurple,4.0,1\n,n/a,2\nwhite,30,3\n"))
    features = encoding.apply({name: new.column(name) for name in new.header})
    assert features[:, 1:].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert features[[0, 2], 0].tolist() == user.inputs[[0, 2], 0].tolist()
    assert features[1, 0] == user.inputs[1, 0]  # missing: the same median
    with pytest.raises(MixMatchError, match="no column 'weight', which the model was trained with"):
        encoding.apply({"color": ["black"]})
    with pytest.raises(MixMatchError, match="column 'weight' holds numbers, but one value is 'heavy'"):
        encoding.apply({"color": ["black"], "weight": ["heavy"]})


def test_a_matrix_has_no_names() -> None:
    """Not even one with as many columns."""
    encoding = Encoding((Numeric("age", 0, 0, 1), Categorical("color", ("red", "blue"), other=False)))
    with pytest.raises(MixMatchError, match=r"the model takes a table.*\(color\): it cannot be given a matrix"):
        encoding.apply_matrix(np.zeros((7, 2)))
    model = Classifier(build("mlp", 2, (3,)), "mlp", ("a", "b"), (3,), encoding)
    assert model.takes == "a table's columns by name (age, color)"


def test_rare_categories_are_pooled() -> None:
    """60 categories, the first ten once and the others twice: of those, 50, all have their own."""
    values = [f"c{i:02}" for i in range(60)] + [f"c{i:02}" for i in range(10, 60)] + [""]
    column = fit_categories("c", values)
    assert column.categories == ("", *(f"c{i:02}" for i in range(10, 60)))
    assert column.other
    hot = Encoding((column,)).apply({"c": ["c00", "c59", "", "never seen"]})
    assert hot.argmax(axis=1).tolist() == [51, 50, 0, 51]
    assert hot.sum(axis=1).tolist() == [1, 1, 1, 1]
    assert len(column.features) == hot.shape[1] == 52


def test_numbers_and_names_by_themselves() -> None:
    number = Encoding((Numeric("x", median=5, mean=4, std=2),))
    assert number.apply({"x": ["8", "", "0"]}).tolist() == [[2], [0.5], [-2]]
    assert number.apply({"x": np.array([8, np.nan])}).tolist() == [[2], [0.5]]
    name = Encoding((Categorical("x", ("a", "b"), other=False),))
    assert name.apply({"x": ["b", "z"]}).tolist() == [[0, 1], [0, 0]]


def test_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    user = read_table(write(tmp_path, "\ufeffx;label\n1,5;a\n-2,5;b\n0;\n"))
    x = np.array([1.5, -2.5, 0])
    np.testing.assert_allclose(user.inputs[:, 0], (x - x.mean()) / x.std(), rtol=1e-6)


def test_quotes_and_spaces(tmp_path: Path) -> None:
    user = read_table(write(tmp_path, 'c , label\n"red, dark",red fox\n"two\nlines", 猫 \n\nplain,\n'))
    assert user.classes == ("red fox", "猫")
    assert user.encoding.feature_names == ["c=plain", "c=red, dark", "c=two\nlines"]
    assert tuple(user.files) == ("line 2", "line 4", "line 6")


def test_number_labels_in_order(tmp_path: Path) -> None:
    """pandas writes class 10 as 10.0 where a label is missing."""
    user = read_table(write(tmp_path, "x,label\n1,10.0\n2,2.0\n3,\n"))
    assert user.classes == ("2", "10")
    assert user.labels.tolist() == [1, 0, UNKNOWN]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "2", "-1"], ("-1", "2", "10")),
        (["--1", "10", "2"], ("--1", "10", "2")),
        (["-", "10", "2"], ("-", "10", "2")),
        (["--1.0", "2.0"], ("--1.0", "2.0")),
        (["1", "01", "001", "0"], ("0", "001", "01", "1")),
    ],
)
def test_only_whole_numbers_are_in_order_of_value(labels: list[str], classes: tuple[str, ...], tmp_path: Path) -> None:
    lines = [f"{row},{label}\n" for row, label in enumerate([*labels, ""])]
    assert read_table(write(tmp_path, "x,label\n" + "".join(lines))).classes == classes


def test_labels_that_look_missing(tmp_path: Path) -> None:
    user = read_table(write(tmp_path, "x,label\n1,a\n2,NA\n3,\n"))
    assert user.classes == ("NA", "a")
    assert "'NA' is taken for a class" in kinds(user)["class-name"]


def test_identifiers_are_left_out(tmp_path: Path) -> None:
    rows = [f"{i},id-{i * 7},{i % 5}.5,{'almost' if i == 70 else i * i},{'ab'[i % 2]}" for i in range(100)]
    user = read_table(write(tmp_path, "\n".join(["row,id,x,mixed,label", *rows, ",id,1,1,"])))
    assert user.encoding.feature_names == ["row", "x"]
    assert "different values" in kinds(user)["free-text"]
    assert "also 'almost'" in kinds(user)["mixed-column"]
    user = read_table(write(tmp_path, "\n".join(["row,x,label", *(f"{i},{i % 3},{'ab'[i % 2]}" for i in range(50))])))
    assert "'row' counts the rows" in kinds(user)["row-number"]
    user = read_table(tmp_path / "own.csv", ignore=["row"])
    assert user.encoding.feature_names == ["x"]
    assert kinds(user).keys() == {"no-unlabeled"}


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("code", [f"P{i:03}" for i in range(30)], "free-text"),
        ("when", [f"2024-01-{i + 1:02}" for i in range(30)], "free-text"),
        ("", np.random.default_rng(0).permutation(40)[:30], "row-number"),  # what pandas leaves of a shuffled table
        ("number", range(1000, 4000, 100), "row-number"),
        ("Patient ID", np.random.default_rng(0).permutation(10_000)[:30], "row-number"),
        ("weight", np.random.default_rng(0).permutation(10_000)[:30], None),
        ("age", [20 + i % 25 for i in range(30)], None),
        ("color", [f"c{i % 25}" for i in range(30)], None),
        ("size", ["n.d." if i == 7 else i % 25 for i in range(30)], "mixed-column"),
    ],
)
def test_identifiers_of_a_small_table(name: str, values: Any, found: str | None, tmp_path: Path) -> None:
    rows = [f"{i % 5}.5,{value},{'ab'[i % 2] if i < 20 else ''}" for i, value in enumerate(values)]
    user = read_table(write(tmp_path, "\n".join([f"x,{name},label", *rows])))
    assert list(kinds(user)) == ([found] if found else [])
    assert any(feature.startswith(name) for feature in user.encoding.feature_names[1:]) == (found != "free-text")


def test_labels_that_look_like_a_quantity(tmp_path: Path) -> None:
    rows = [f"{i % 5},{i / 7:.3f}" for i in range(30)]
    user = read_table(write(tmp_path, "\n".join(["x,label", *rows, "1,"])))
    assert "30 different labels in 30 labeled rows" in kinds(user)["many-classes"]


def test_rows_of_another_table() -> None:
    encoding = Encoding((Numeric("a", 0, 0, 1), Numeric("b", 0, 0, 1)))
    with pytest.raises(MixMatchError, match=r"none of the 2 columns that the model was trained with \(a, b\)"):
        encoding.apply({"c": ["1"]})


def test_mostly_missing_is_a_warning(tmp_path: Path) -> None:
    user = read_table(write(tmp_path, "x,z,label\n1,,a\n2,,b\n3,1,\n4,,\n"))
    (finding,) = [finding for finding in user.findings if finding.kind == "missing-values"]
    assert (finding.severity, finding.files) == ("warning", ("z",))


def test_test_rows(tmp_path: Path) -> None:
    user = read_table(
        write(tmp_path, "x,label,set\n9,a,test\n1,a,\n3,b,train\n2,,\n5,c,test\n7,,test\n"), part_column="set"
    )
    assert tuple(user.files) == ("line 3", "line 4", "line 5", "line 2")
    assert user.part == ("train", "train", "train", "test")
    np.testing.assert_allclose(user.inputs[:, 0], (np.array([1, 3, 2, 9]) - 2) / np.sqrt(2 / 3), rtol=1e-6)
    assert kinds(user).keys() == {"unlabeled-test", "unknown-class"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x,lable\n1,a\n", "has no column 'label': did you mean 'lable'?"),
        ("label\na\nb\n", "nothing to learn from"),
        ("x,label\n1,a\n2,a\n3,\n", "one class only"),
        ("x,label\n1,\n2,\n", "has no labeled rows to train on"),
        ("x,y\n1,a\n", r"has no column 'label' \(it has x, y\); name the right one with label_column="),
        ("x,label\n1,a\ninf,b\n", "1 value of column 'x' is infinite: correct it, or leave it out as missing"),
        ("x,label\n1,a\n1,b\n", "has no column to learn from: column 'x' is '1' in every row"),
        ("x,label\n1,a\n1,b,c\n", r"line 3 has 3 fields, but the header 2: correct the line \(a value with a comma in"),
        ("x,x,label\n1,1,a\n", "several columns named 'x'"),
        ("x,label\n", "has a header but no rows"),
        ("", "is empty"),
        ("\n", "is empty"),
        (
            "x,label\n" + "9" * 200_000 + ",a\n",
            "line 2 has a cell of more than 131,072 characters: shorten it, or close its quote",
        ),
    ],
    ids=range(13),
)
def test_errors(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=why) as caught:
        read_table(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_other_errors(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"there is no file .*nowhere.csv"):
        read_table(tmp_path / "nowhere.csv")
    path = write(tmp_path, PETS)
    with pytest.raises(MixMatchError, match="has no column 'wieght': did you mean 'weight'"):
        read_table(path, ignore=["wieght"])
    with pytest.raises(MixMatchError, match="line 2: column 'note' is 'ok', but must be train, test or empty"):
        read_table(path, part_column="note")
    path.write_bytes(b"x,label\n\xff\xfe,a\n")
    with pytest.raises(MixMatchError, match="not text in UTF-8"):
        read_table(path)


# ---------------------------------------------------------------------------------------------------------- parquet


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.import_module

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name)
        return find(name, *rest)

    monkeypatch.setattr(importlib, "import_module", refuse)
    (tmp_path / "own.parquet").touch()
    with pytest.raises(MixMatchError, match=r"needs pyarrow, which is not installed: pip install 'mixmatch\[tables\]'"):
        read_table(tmp_path / "own.parquet")


def test_parquet_is_the_same_table(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "weight": [4.0, None, 30, 10, 6, float("nan")],
        "color": ["black", "white", "black", None, "brown", "white"],
        "note": [True] * 6,
        "label": ["cat", "cat", "dog", "dog", None, None],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "own.parquet")
    user, other = read_table(tmp_path / "own.parquet"), read_table(write(tmp_path, PETS))
    np.testing.assert_array_equal(user.inputs, other.inputs)
    assert (user.classes, user.encoding) == (other.classes, other.encoding)
    assert user.files[0] == "row 1"
    parquet.write_table(arrow.table({**columns, "x": [[1.0, 2.0]] * 6}), tmp_path / "lists.parquet")
    with pytest.raises(MixMatchError, match=r"column 'x' holds a list<.*spread it over columns.* ignore='x'"):
        read_table(tmp_path / "lists.parquet")
    assert read_table(tmp_path / "lists.parquet", ignore=["x"]).encoding == user.encoding
    assert user.encoding is not None
    new = read_rows(tmp_path / "lists.parquet")  # to be predicted: what training did not use is not looked at
    assert user.encoding.apply(new.select(new.header)).shape == (6, user.inputs.shape[1])
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(MixMatchError, match=r"cannot read .*bad.parquet"):
        read_rows(tmp_path / "bad.parquet")


def test_rows_are_called_by_their_id(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,a,label\nP1,1,x\nP2,2,y\n,3,\nP2,4,\n")
    user = read_table(path, id_column="id")
    assert user.files == ("P1", "P2", "line 4", "P2")
    assert user.encoding is not None
    assert user.encoding.feature_names == ["a"]
    assert Encoding.from_dict(user.encoding.to_dict()) == user.encoding
    assert user.encoding.id_column == "id"
    assert [f.message for f in user.findings] == ["1 value of column 'id' in more than one row (P2)"]
    assert "id_column" not in read_table(path, ignore=["id"]).encoding.to_dict()  # type: ignore[union-attr]
    with pytest.raises(MixMatchError, match=r"no column 'idd': did you mean 'id'.*id_column="):
        read_table(path, id_column="idd")


def test_parquet_with_what_python_does_not_know(tmp_path: Path) -> None:
    """One line that names the column; a column that is left out is not looked at."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "own.parquet"
    for kind in (arrow.timestamp("us"), arrow.timestamp("ms", "Nowhere/Land"), arrow.duration("ms"), arrow.date64()):
        times = arrow.array([2**62 // 86_400_000 * 86_400_000] * 4, arrow.int64()).cast(kind)
        parquet.write_table(arrow.table({"t": times, "x": [1, 2, 3, 4], "label": ["a", "b", "a", "b"]}), path)
        with pytest.raises(
            MixMatchError, match=r"column 't' of type .* has a value that Python cannot represent"
        ) as caught:
            read_table(path)
        assert "leave the column out with ignore='t'" in str(caught.value)
        assert read_table(path, ignore=["t"]).inputs.shape == (4, 1)
    content = bytearray(path.read_bytes())
    content[len(content) // 8 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 8)
    path.write_bytes(content)
    with pytest.raises(MixMatchError, match="cannot read") as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_parquet_numbers_are_those_of_a_csv_file(tmp_path: Path) -> None:
    """Of every width, missing ones, and those that float64 does not hold exactly. A name may have a dot in it."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "a": arrow.array([1, None, 2**53 + 1, -(2**62)], arrow.int64()),
        "a.b": arrow.array([0.1, 0.2, None, 3e38], arrow.float32()),
        "c": arrow.array([0.1, float("nan"), 1e-300, 7.0]),
        "d": arrow.array([5, 5, 5, 5]),
        "e": arrow.array([1, 2, 3, 4], arrow.uint8()).dictionary_encode(),
        "label": arrow.array(["x", "y", "x", "y"]),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "own.parquet")
    lines = zip(
        *(["" if v is None else str(v) for v in column.to_pylist()] for column in columns.values()), strict=True
    )
    text = "\n".join(map(",".join, [tuple(columns), *lines]))
    parquet_, csv_ = read_table(tmp_path / "own.parquet"), read_table(write(tmp_path, text))
    np.testing.assert_array_equal(parquet_.inputs, csv_.inputs)
    assert parquet_.encoding == csv_.encoding
    assert [f.message for f in parquet_.findings][:-1] == [f.message for f in csv_.findings][:-1]
