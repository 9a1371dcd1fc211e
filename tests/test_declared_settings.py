"""Every setting is declared once, with help and a range; and a preset reaches only the method it is for."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any, Literal

import pytest

from mixmatch import presets
from mixmatch.data import Reading
from mixmatch.declare import Setting, settings_of
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS
from mixmatch.settings import Settings, resolve

DECLARED = [
    pytest.param(declared, id=f"{owner}-{name}")
    for owner, cls in {"run": Settings, **METHODS}.items()
    for name, declared in settings_of(cls).items()
]
TABLES = ("data_options", "method_settings")
"""Checked by whoever reads them."""


@pytest.mark.parametrize("cls", [Settings, *METHODS.values()], ids=lambda cls: cls.__name__)
def test_every_field_is_declared(cls: type) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    assert fields - {"data"} == settings_of(cls).keys()
    assert len(fields) > 0 or cls is METHODS["supervised"]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_no_setting_that_every_run_has(method: str) -> None:
    """The command line has both as options: two of one name would end every command that trains."""
    assert not settings_of(METHODS[method]).keys() & {**settings_of(Settings), **settings_of(Reading)}.keys()


@pytest.mark.parametrize("declared", DECLARED)
def test_it_has_help_that_is_a_sentence(declared: Setting) -> None:
    assert len(declared.help) > 10
    assert declared.help == declared.help.strip()
    assert declared.help[0].isupper() or declared.help[0] in "`" or declared.name == "network"
    assert declared.help.endswith(".")


@pytest.mark.parametrize("declared", DECLARED)
def test_it_has_a_range_or_choices_or_a_type_that_cannot_be_wrong(declared: Setting) -> None:
    if declared.name in TABLES:
        assert typing.get_origin(declared.kind) is dict
        return
    for kind in declared.kinds:
        if kind in (int, float):
            low = declared.least if declared.least is not None else declared.above
            assert low is not None, "no least value"
            below = [low - 1, math.nan, math.inf, -math.inf, True] + ([low] if declared.above is not None else [])
            above = [] if declared.most is None else [declared.most + 1]
            for value in [*below, *above, "x", None]:
                if value not in declared.choices and not (value is None and type(None) in declared.kinds):
                    with pytest.raises(MixMatchError, match=f"^{declared.name}="):
                        declared.check(value)
        else:
            assert kind in (bool, str, type(None)) or typing.get_origin(kind) is Literal
    if declared.choices and str not in declared.kinds:
        with pytest.raises(MixMatchError, match=f"^{declared.name}='nonsense' must be"):
            declared.check("nonsense")


@pytest.mark.parametrize("declared", DECLARED)
def test_its_default_is_a_value_it_may_have(declared: Setting) -> None:
    if declared.name not in TABLES:
        assert declared.check(declared.default) == declared.default


@pytest.mark.parametrize("declared", DECLARED)
def test_text_from_the_command_line_is_read_as_the_value(declared: Setting) -> None:
    plain = [kind for kind in declared.kinds if kind in (int, float, str)]
    if declared.name not in TABLES and (plain or declared.choices):
        assert declared.parse(str(declared.default)) == declared.default


# ---------------------------------------------------------------- presets


@pytest.mark.parametrize(
    ("method", "alpha"), [("mixmatch", 0.2), ("ict", 0.5), ("mixup", 0.75), ("supervised-mixup", 0.5)]
)
def test_the_alpha_for_user_features_is_mixmatchs_alone(method: str, alpha: float) -> None:
    assert resolve("rows.csv", {"method": method}, "features").method_settings["alpha"] == alpha


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("data", "kind"), [*((data, None) for data in [*presets.DATA, "cifar10-test"]), ("x", "images"), ("x", "features")]
)
def test_a_method_has_its_own_defaults_but_for_presets_of_its_own(data: str, kind: Any, method: str) -> None:
    """Worked out from the tables entry by entry: those of this data set, or of the one it is a part of."""
    tables: list[dict[str, Any]] = []
    if kind is not None:
        tables = [table for key, table in presets.USER_METHOD.items() if key == (kind, method)]
    else:
        for name in (data.removesuffix("-test"), data):
            tables += [table for key, table in presets.DATA_METHOD.items() if key == (name, method)]
    declared = settings_of(METHODS[method])
    expected = {name: each.default for name, each in declared.items()}
    for table in tables:
        expected |= {name: value for name, value in table.items() if name in declared}
    found = resolve(data, {"method": method}, kind)
    for name, value in expected.items():
        if isinstance(value, presets.PartOfSteps):
            value = found.steps // value.divisor
        assert found.method_settings[name] == value, name
    assert found.method_settings.keys() == declared.keys()


def test_every_preset_names_settings_that_exist() -> None:
    run = settings_of(Settings)
    for tables in (presets.DATA, presets.USER):
        for name, table in tables.items():
            assert table.keys() <= run.keys(), name
    for pairs in (presets.DATA_METHOD, presets.USER_METHOD):
        for (name, method), table in pairs.items():
            assert table.keys() <= {*run, *settings_of(METHODS[method])}, (name, method)
