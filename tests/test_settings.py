"""Settings: the paper's tables as copied from the official run scripts, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from mixmatch.errors import MixMatchError
from mixmatch.settings import Settings, differences, from_dict, of_run, resolve

# The official commands (table1.sh, table2.sh, table5.sh to table7.sh), MixMatch rows:
# data set: w_match, beta, weight decay, network, padding, whether images are flipped
OFFICIAL: dict[str, tuple[float, float, float, str, int, bool]] = {
    "cifar10": (75, 0.75, 0.02, "wrn-28-2", 4, True),
    "svhn": (250, 0.75, 0.02, "wrn-28-2", 4, False),
    "svhn-extra": (250, 0.25, 0.02, "wrn-28-2", 4, False),
    "cifar100": (150, 0.75, 0.04, "wrn-28-large", 4, True),
    "stl10": (50, 0.75, 0.02, "wrn-28-2-stl10", 12, True),
}


@pytest.mark.parametrize("data", OFFICIAL)
def test_presets_are_the_official_commands(data: str) -> None:
    lambda_u, alpha, weight_decay, network, pad, flip = OFFICIAL[data]
    settings = resolve(data, {})
    assert settings.method == "mixmatch"
    assert settings.method_settings["lambda_u"] == lambda_u
    assert settings.method_settings["alpha"] == alpha
    assert settings.weight_decay == weight_decay
    assert settings.network == network
    assert (settings.pad, settings.flip) == (pad, flip)
    assert settings.valid == 1
    assert settings.method_settings["passes"] == "official"


@pytest.mark.parametrize("data", [*OFFICIAL, "own-data"])
def test_constants_shared_by_all(data: str) -> None:
    settings = resolve(data, {})
    assert settings.learning_rate == 0.002
    assert settings.schedule == "constant"
    assert settings.batch_size == 64
    assert settings.steps == 1_048_576
    assert settings.ema_decay == 0.999
    assert settings.eval_every == 1024
    assert settings.seed == 1
    method = settings.method_settings
    assert (method["ramp"], method["K"], method["T"]) == (16_384, 2, 0.5)


def test_data_without_a_preset() -> None:
    settings = resolve("own-data", {})
    assert settings.data == "own-data"
    assert settings.method_settings["alpha"] == 0.75
    assert settings.method_settings["lambda_u"] == 100
    assert (settings.weight_decay, settings.valid, settings.flip) == (0.02, 0, False)


def test_presets_are_of_a_data_set_and_a_method() -> None:
    """CIFAR-100's decay of 0.04 belongs to MixMatch; its network to the data set."""
    settings = resolve("cifar100", {"method": "supervised"})
    assert settings.weight_decay == 0.02
    assert settings.network == "wrn-28-large"
    assert "lambda_u" not in settings.method_settings


def test_what_is_given_wins() -> None:
    given = {"lambda_u": 1.5, "weight_decay": 0.3, "network": "wrn-28-4", "pad": 2, "labels": 4000, "K": 4, "seed": 5}
    settings = resolve("cifar100", given)
    flat = {**settings.to_dict(), **settings.method_settings}
    assert {name: flat[name] for name in given} == given
    assert flat["alpha"] == 0.75
    assert resolve("cifar10", {"labels": "all"}).labels == "all"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lamda_u": 3}, "unknown setting 'lamda_u': did you mean 'lambda_u'?"),
        ({"learning_rte": 3}, "unknown setting 'learning_rte': did you mean 'learning_rate'?"),
        ({"method": "mixmtch"}, "unknown method 'mixmtch': did you mean 'mixmatch'?"),
        ({"method": "supervised", "alpha": 3}, "method 'supervised' has no setting alpha= (mixmatch, "),
        ({"method": "ict", "K": 3}, "method 'ict' has no setting K= (mixmatch, remixmatch have it)"),
        ({"data": "cifar10"}, "unknown setting 'data'"),
        ({"method_settings": {}}, "unknown setting 'method_settings'"),
    ],
)
def test_names_that_are_not_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MixMatchError) as caught:
        resolve("cifar10", given)
    assert str(caught.value).startswith(message)


BAD: list[tuple[str, Any, str]] = [
    ("steps", 0, "steps=0 must be a whole number of at least 1"),
    ("steps", 1.5, "steps=1.5 must be a whole number of at least 1"),
    ("steps", "100", "steps='100' must be a whole number of at least 1"),
    ("steps", True, "steps=True must be a whole number of at least 1"),
    ("batch_size", 0, "batch_size=0 must be a whole number of at least 1"),
    ("eval_every", 0, "eval_every=0 must be a whole number of at least 1"),
    ("seed", -1, "seed=-1 must be a whole number of at least 0"),
    ("valid", -1, "valid=-1 must be a whole number of at least 0"),
    ("pad", -1, "pad=-1 must be a whole number of at least 0"),
    ("labels", 0, "labels=0 must be a whole number of at least 1 or 'all'"),
    ("labels", "some", "labels='some' must be a whole number of at least 1 or 'all'"),
    ("labels", 2.5, "labels=2.5 must be a whole number of at least 1 or 'all'"),
    ("labels", None, "labels=None must be a whole number of at least 1 or 'all'"),
    ("learning_rate", math.nan, "learning_rate=nan must be a number of at least 0"),
    ("learning_rate", -0.1, "learning_rate=-0.1 must be a number of at least 0"),
    ("learning_rate", "0.1", "learning_rate='0.1' must be a number of at least 0"),
    ("learning_rate", True, "learning_rate=True must be a number of at least 0"),
    ("weight_decay", math.inf, "weight_decay=inf must be a number of at least 0"),
    ("ema_decay", 1.1, "ema_decay=1.1 must be a number between 0 and 1"),
    ("schedule", "step", "schedule='step' must be one of constant, cosine, linear, cosine-7/16"),
    ("precision", "fp16", "precision='fp16' must be one of fp32, bf16"),
    ("precision", 16, "precision=16 must be one of fp32, bf16"),
    ("flip", 1, "flip=1 must be true or false"),
    ("network", 3, "network=3 must be a name, in quotes"),
    ("K", 0, "K=0 must be a whole number of at least 1"),
    ("T", -1, "T=-1 must be a number of at least 0"),
    ("passes", "x", "passes='x' must be one of official, fused"),
    ("method", 3, "unknown method '3'"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_bad_values_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(MixMatchError) as caught:
        resolve("cifar10", {name: value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_borders_are_allowed() -> None:
    given = {"steps": 1, "batch_size": 1, "seed": 0, "valid": 0, "pad": 0, "labels": 1, "eval_every": 1}
    resolve("cifar10", {**given, "learning_rate": 0, "weight_decay": 0, "ema_decay": 1, "ramp": 0, "lambda_u": 0})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("labels", "4000", 4000),
        ("labels", "4,000", 4000),
        ("labels", "1_000", 1000),
        ("labels", "all", "all"),
        ("steps", "1,048,576", 2**20),
        ("learning_rate", "0.002", 0.002),
        ("learning_rate", "2e-3", 0.002),
        ("learning_rate", "1", 1.0),
        ("seed", "0", 0),
        ("network", "12", "12"),
        ("schedule", "cosine-7/16", "cosine-7/16"),
    ],
)
def test_values_on_the_command_line(name: str, text: str, value: Any) -> None:
    parsed = of_run()[name].parse(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("learning_rate", "0,002"),
        ("learning_rate", "1,000"),
        ("learning_rate", "nan"),
        ("learning_rate", ""),
        ("labels", "0,5"),
        ("labels", "1,00"),
        ("labels", "some"),
        ("labels", "2.5"),
        ("steps", "1e3"),
        ("steps", "-1"),
        ("seed", ""),
        ("schedule", "step"),
    ],
)
def test_values_on_the_command_line_that_are_refused(name: str, text: str) -> None:
    """A comma is no decimal point: 0,002 must not become 2."""
    with pytest.raises(MixMatchError, match=f"^{name}=.* must be "):
        of_run()[name].parse(text)


# ---------------------------------------------------------------- as a dictionary


@pytest.mark.parametrize("given", [{}, {"method": "supervised", "labels": "all"}, {"alpha": 1 / 3, "seed": 4}])
def test_settings_come_back_from_json(given: dict[str, Any]) -> None:
    settings = resolve("svhn", given)
    assert from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_a_dictionary_tells_everything() -> None:
    values = resolve("svhn", {}).to_dict()
    assert set(values) == {field.name for field in dataclasses.fields(Settings)}
    assert set(values["method_settings"]) >= {"K", "T", "alpha", "lambda_u", "ramp", "passes"}
    assert values["data"] == "svhn"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve("svhn", {}).steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stps": 3}, "unknown setting 'stps': did you mean 'steps'?"),
        ({"steps": -3}, "steps=-3 must be a whole number of at least 1"),
        ({"method": "mixmtch"}, "unknown method 'mixmtch': did you mean 'mixmatch'?"),
        ({"method": 3}, "method=3 must be a name"),
        ({"method": []}, "method=[] must be a name"),
        ({"method_settings": {"beta": 1}}, "unknown setting 'beta' of method 'mixmatch'"),
        ({"method_settings": {"K": 0}}, "K=0 must be a whole number of at least 1"),
        ({"method_settings": 3}, "method_settings=3 must be "),
        ({"data": 3}, "data=3 must be a name"),
    ],
)
def test_dictionaries_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MixMatchError) as caught:
        from_dict({**resolve("cifar10", {}).to_dict(), **change})
    assert str(caught.value).startswith(message)


def test_a_dictionary_without_a_data_set() -> None:
    with pytest.raises(MixMatchError, match="name no data set"):
        from_dict({"steps": 3})


def test_differences() -> None:
    a = resolve("cifar10", {"steps": 100})
    assert differences(a, a) == []
    assert differences(a, resolve("cifar10", {"steps": 200, "lambda_u": 1.0})) == [
        "steps: 100 -> 200",
        "lambda_u: 75.0 -> 1.0",
    ]
    told = differences(a, resolve("cifar10", {"steps": 100, "method": "supervised"}))
    assert "method: mixmatch -> supervised" in told
    assert "lambda_u: 75.0 -> not set" in told
    back = differences(resolve("cifar10", {"steps": 100, "method": "supervised"}), a)
    assert "lambda_u: not set -> 75.0" in back
