"""How user data is read: the settings of its readers, each declared once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from mixmatch.declare import setting, settings_of
from mixmatch.errors import MixMatchError, unknown

IMAGE_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)


@dataclass(frozen=True)
class Reading:
    """How user data is read. What is None is left to the reader.

    >>> Reading(image_size=64).given
    {'image_size': 64}
    """

    labels_file: str | None = setting(None, "For images, a CSV of file and label; for a .npy file, another .npy file.")
    image_size: int | None = setting(
        None, "Images: pixels to resize to (default: chosen from the images).", within=(IMAGE_SIZES[0], IMAGE_SIZES[-1])
    )
    label_column: str | None = setting(None, "A table: the column with the label (default: label).")
    part_column: str | None = setting(None, "A table: a column that is 'test' in rows to evaluate on.")
    id_column: str | None = setting(None, "A table: a column that names each row; not a feature, kept in predictions.")
    ignore: tuple[str, ...] = setting((), "A table: a column that is not a feature.", metavar="COLUMN")
    channels: int | None = None
    """Of images, 1 (gray) or 3 (color); by default 1 if all images are gray. PATE sets it, users do not."""

    def __post_init__(self) -> None:
        if self.labels_file is not None:
            object.__setattr__(self, "labels_file", str(self.labels_file))
            if not self.labels_file.strip():
                raise MixMatchError("labels_file= is empty: give a path")
        if isinstance(cast(Any, self.ignore), str):
            raise MixMatchError(f"ignore={self.ignore!r} must be a list of columns")
        object.__setattr__(self, "ignore", tuple(self.ignore or ()))
        for name, declared in settings_of(Reading).items():
            object.__setattr__(self, name, declared.check(getattr(self, name)))
        if self.channels not in (None, 1, 3):
            raise MixMatchError(f"channels={self.channels} must be 1 (gray) or 3 (color)")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Reading:
        """From settings by name, as in a run's `data_options`. A name that is not known is refused."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise unknown("setting", name, known, of="how data is read")
        return cls(**options)

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not the default, by name."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default}
