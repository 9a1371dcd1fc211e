"""A run's settings: one frozen dataclass, recorded in full in the run's config.json."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mixmatch import methods, presets
from mixmatch.declare import Setting, setting, settings_of
from mixmatch.errors import MixMatchError, unknown
from mixmatch.methods.base import Method, method_settings
from mixmatch.presets import Kind, PartOfSteps
from mixmatch.storage import MOST_JSON, parse_json, read_plain

Precision = Literal["fp32", "bf16"]
Schedule = Literal["constant", "cosine", "linear", "cosine-7/16"]
Strong = Literal["cutout", "randaugment", "kekmodel", "torchssl", "ctaugment", "ctaugment-only"]
Labels = int | Literal["all"]

BASIC = "Options"

SGD_WEIGHT_DECAY = 5e-4
"""Of SGD, if nobody says otherwise: what FixMatch and its successors use."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run learns. The defaults are the paper's."""

    data: str
    method: str = setting("mixmatch", "How to learn; `mixmatch methods` lists the methods.", group=BASIC)
    labels: Labels = setting(250, "How many images are labeled.", least=1, metavar="N|all", group=BASIC)
    seed: int = setting(
        1, "Decides which images are labeled, the initial weights and every random draw.",
        least=0, experiment=False, group=BASIC,
    )  # fmt: skip
    valid: int = setting(0, "Unlabeled images held out for validation.", least=0)
    unlabeled: Literal["rest", "all"] = setting(
        "rest", "Which images are used as unlabeled: the `rest`, or `all`, the labeled ones too."
    )
    imbalance: float = setting(
        1.0,
        "Ratio of the first class's number of images to the last's, labeled and unlabeled alike: published data sets "
        "are thinned out to an exponential long tail.",
        least=1,
    )
    hold_out: Literal["two-classes", "large-classes", "all-classes", "none"] = setting(
        "all-classes",
        "Your own data without a test part: hold out a fifth of each class with at least ten labels if two classes "
        "have that many (`two-classes`), if one has (`large-classes`) or if all have (`all-classes`); or `none`.",
    )
    label_sampling: Literal["uniform", "balanced"] = setting(
        "uniform",
        "Which labeled images a step draws: each as often as the others (`uniform`), or each class as often as the "
        "others (`balanced`), for classes with few labels.",
    )
    network: str = setting("wrn-28-2", "wrn-28-2, wrn-28-large, cnn13, mlp, timm:NAME, ...")
    features: str = setting(
        "none",
        "Learn from frozen features of images: `basic`, or `timm:NAME`, those of a pretrained network; `none` learns "
        "from the pixels. Without a GPU, user images have basic ones by default.",
        metavar="none|basic|timm:NAME",
    )
    views: int = setting(
        4,
        "With features: how many versions of each image are embedded, the image itself and shifted copies.",
        least=1,
        limit=1024,
    )
    weights: str = setting(
        "", "A file of weights for timm:NAME; without it, frozen features use timm's own.", metavar="FILE"
    )
    steps: int = setting(2**20, "How many steps to train; may be changed on resume.", least=1, limit=2**40, group=BASIC)
    batch_size: int = setting(
        64, "Labeled images per step; unlabeled ones: this times the method's ratio.", least=1, limit=2**20, group=BASIC
    )
    groups: int = setting(
        1,
        "Parts of a batch that are mixed and normalized separately, one after the other or by several processes; "
        "gradients are averaged over them.",
        least=1,
        limit=2**20,
    )
    optimizer: Literal["adam", "sgd"] = setting(
        "adam", "Adam with decoupled weight decay, or SGD with Nesterov momentum."
    )
    learning_rate: float = setting(0.002, "Learning rate of the optimizer.", least=0, search=10)
    momentum: float = setting(0.9, "Momentum of SGD.", within=(0, 1))
    schedule: Schedule = setting(
        "constant", "How the learning rate falls over the run.", of_steps=lambda schedule: schedule != "constant"
    )
    weight_decay: float = setting(
        0.02,
        "Decay of kernels: Adam multiplies them by 1 - learning_rate * weight_decay per step, SGD has an L2 loss.",
        least=0,
        search=10,
    )
    ema_decay: float = setting(0.999, "Decay of the averaged weights, which are the ones evaluated.", within=(0, 1))
    ema_warmup: bool = setting(False, "Average over fewer steps at the start, so that early averages do not lag.")
    pad: int = setting(4, "Pixels by which an image is mirror-padded before the random crop.", least=0, limit=2**14)
    flip: bool = setting(False, "Flip images left to right at random.")
    strong: Strong = setting("cutout", "Strong augmentation of images, for methods that use it.")
    noise: float = setting(0.0, "Features: deviation of the Gaussian noise that is added.", least=0, search=(0, 1))
    mask: float = setting(0.0, "Features: share of them that is hidden at random.", within=(0, 1), search=(0, 0.6))
    precision: Precision = setting("fp32", "Precision of the passes; by default bf16 where it is faster.")
    eval_every: int = setting(1024, "Steps between evaluations.", least=1, limit=2**40)
    data_options: dict[str, Any] = setting({}, "How user data is read; for PATE, which part of a data set it is.")
    method_settings: dict[str, Any] = setting({}, "The settings of the method.")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def build_method(self) -> Method:
        """The method that the settings name, with its settings."""
        return methods.build(self.method, self.method_settings)


def of_run() -> dict[str, Setting]:
    """The declared settings of a run that are plain values, by name."""
    return {n: s for n, s in settings_of(Settings).items() if n not in ("data_options", "method_settings")}


def resolve(data: str, given: Mapping[str, Any], kind: Kind | None = None) -> Settings:
    """The settings for a data set: the paper's, unless given. Names that are not settings are refused.

    Later ones win: the method's own defaults, the data set's preset, what the method asks of the run, the preset for
    this data set and method, what is given. User data of a `kind` has presets of its own. `method` may be an object,
    whose settings then count as given.

    >>> resolve("cifar10", {"labels": 4000}).method_settings["lambda_u"]
    75.0
    """
    given = dict(given)
    method = given.pop("method", "mixmatch")
    run = of_run()
    if isinstance(method, Method):
        name, cls, defaults = methods.name_of(method), type(method), dict[str, Any]()
        for declared in settings_of(cls).values():
            declared.check(getattr(method, declared.name))
        fixed = method_settings(method)
    else:
        name, cls, fixed = method, methods.find(method), dict[str, Any]()
        defaults = {n: s.default for n, s in methods.declared(name).items()}
    _check_names(cls, {*defaults, *fixed}, run)
    for each in given:
        if each not in run and each not in defaults:
            raise _unknown(each, name, [*run, *defaults], each in fixed)
    embedded = given.get("features", "none") != "none"
    scoped = presets.of_method(data, "features" if embedded else kind, name)
    scoped = {**scoped, **presets.EMBEDDED_METHOD.get(name, {})} if embedded else scoped
    chosen = {**cls.run_defaults, **scoped, **given}
    values = {**presets.of_data(data, kind), **(presets.EMBEDDED if embedded else {}), **chosen, "method": name}
    if values.get("optimizer") == "sgd" and "weight_decay" not in chosen:  # presets are for Adam
        values["weight_decay"] = SGD_WEIGHT_DECAY
    of_method = {**defaults, **{n: v for n, v in {**scoped, **given}.items() if n in defaults}, **fixed}
    steps = run["steps"].check(values.get("steps", run["steps"].default))
    of_method = {n: steps // v.divisor if isinstance(v, PartOfSteps) else v for n, v in of_method.items()}
    return check(Settings(data=data, **{n: v for n, v in values.items() if n in run}, method_settings=of_method))


def _check_names(method: type[Method], names: set[str], run: Mapping[str, Setting]) -> None:
    """A method's settings have names of their own, and what it asks of the run are settings of the run."""
    for each in sorted(names & set(run)):
        raise MixMatchError(f"{method.__name__} declares the setting '{each}', which every run has: rename it")
    for each in method.run_defaults:
        if each not in run:
            raise unknown("setting", each, run, of=f"{method.__name__}.run_defaults")


def _unknown(name: str, method: str, known: list[str], of_object: bool) -> MixMatchError:
    if of_object:
        return MixMatchError(f"{name} is a setting of the method object: give it to {method} itself")
    others = [other for other in methods.METHODS if name in methods.declared(other)]
    if others:
        own = ", ".join(f"{each}=" for each in known if each not in of_run())
        more, have = f"; its own are {own}" if own else "", "has" if len(others) == 1 else "have"
        return MixMatchError(f"method '{method}' has no setting {name}= ({', '.join(others)} {have} it){more}")
    return unknown("setting", name, known)


def check(settings: Settings) -> Settings:
    """The same settings in their declared types, or an error that names the setting and its value."""
    values = {name: s.check(getattr(settings, name)) for name, s in settings_of(Settings).items()}
    if not isinstance(settings.data, str):
        raise MixMatchError(f"data={settings.data!r} must be a name")
    if values["batch_size"] % values["groups"]:
        raise MixMatchError(f"groups={values['groups']} must divide batch_size={values['batch_size']}")
    if not values["method"].startswith(methods.CUSTOM):
        values["method_settings"] = methods.checked(values["method"], values["method_settings"])
        if values["label_sampling"] == "balanced" and values["method_settings"].get("balance") == "abc":
            raise MixMatchError(
                "balance=abc contradicts label_sampling=balanced: each alone makes up for uneven labels, both together "
                "learn rare classes most: leave one out"
            )
    return dataclasses.replace(settings, **values)


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Settings as `to_dict` wrote them, also by an earlier version: a setting it did not have yet is at its default,
    which is what it did. A name that is not known is refused."""
    known = {f.name for f in dataclasses.fields(Settings)}
    for name in values:
        if name not in known:
            raise unknown("setting", name, known)
    if "data" not in values:
        raise MixMatchError("the settings name no data set")
    given, method = values.get("method_settings", {}), values.get("method", "mixmatch")
    if isinstance(given, Mapping) and isinstance(method, str):
        defaults = {n: s.default for n, s in methods.declared(method).items()}
        given = {**defaults, **given}
    return check(Settings(**{**values, "method_settings": given}))


def updated(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with these values, of the run or of the method, in their place."""
    run = of_run()
    of_method = {name: value for name, value in values.items() if name not in run and name != "data_options"}
    return dataclasses.replace(
        settings,
        **{name: value for name, value in values.items() if name not in of_method},
        method_settings={**settings.method_settings, **of_method},
    )


def flat(settings: Settings) -> dict[str, Any]:
    """All settings by name: of the run, of the method, and of how data is read."""
    values = settings.to_dict()
    of_method, reading = values.pop("method_settings"), values.pop("data_options")
    return {**values, **of_method, **reading}


def differences(a: Settings, b: Settings) -> list[str]:
    """What differs, as lines like 'steps: 100 -> 200'."""
    flat_a, flat_b = flat(a), flat(b)
    names = [*flat_a, *(name for name in flat_b if name not in flat_a)]
    return [
        f"{name}: {_short(flat_a.get(name, 'not set'))} -> {_short(flat_b.get(name, 'not set'))}"
        for name in names
        if flat_a.get(name) != flat_b.get(name)
    ]


def depends_on_steps(settings: Settings, method: type[Method]) -> str | None:
    """Why a run of so many steps is not the beginning of a longer one; None if it is."""
    values = flat(settings)
    for name, declared in {**of_run(), **settings_of(method)}.items():
        if declared.of_steps is not None and declared.of_steps(values[name]):
            return f"its {name}={values[name]} depends on the number of steps"
    return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def read_file(path: Path, method: str | Method | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings in a file, and how it says user data is read: a run's config.json, or TOML. If another `method` is
    given than the file's, a run's settings of its method are left out. A setting that a run did not have yet is at its
    default, which is what it did.

    A TOML file names settings of the run and of the method alike, and may have a table `[data_options]`:

        method = "mixmatch"
        steps = 65536
        lambda_u = 75.0
    """
    try:
        if path.is_relative_to("/dev"):  # from a shell's <(...) it is a pipe
            with path.open("rb") as pipe:
                text = pipe.read(MOST_JSON).decode()
        else:
            text = read_plain(path, MOST_JSON, follow=True).decode()
        content = tomllib.loads(text) if path.suffix.lower() == ".toml" else parse_json(text)
    except OSError as error:
        raise MixMatchError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise MixMatchError(f"{path} is not a file of settings, TOML or a run's config.json ({error})") from None
    values = content.get("settings", content) if isinstance(content, dict) else None
    if not isinstance(values, dict) or not values:
        raise MixMatchError(f"{path} holds no settings")
    tables = {name: values.get(name, {}) for name in ("data_options", "method_settings")}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise MixMatchError(f"{path}: {name} must be a table of names and values")
    for name, value in values.items():
        if isinstance(value, dict) and name not in tables:
            names_it = f', after method = "{name}"' if name in methods.METHODS else ""
            raise MixMatchError(
                f"{path}: unknown table [{name}]: its settings go at the top of the file, outside any table{names_it}"
            )
    then = {name: declared.default for name, declared in of_run().items()} if "format" in content else {}
    plain = {**then, **{name: value for name, value in values.items() if name not in ("data", *tables)}}
    if method not in (None, plain.get("method", "mixmatch")):
        return plain, tables["data_options"]
    return {**plain, **tables["method_settings"]}, tables["data_options"]
