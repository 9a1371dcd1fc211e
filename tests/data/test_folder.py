"""A folder of real image files: every format and mode, and everything that can be wrong with a person's files."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import time
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from mixmatch.data.cache import remove_abandoned
from mixmatch.data.opened import to_data
from mixmatch.data.source import UNKNOWN
from mixmatch.data.user import images as images_module
from mixmatch.data.user.folder import read_folder
from mixmatch.data.user.images import Header, decode_image, default_size, parallel_map
from mixmatch.data.user.listing import find_images
from mixmatch.data.user.reading import IMAGE_SIZES
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.errors import MixMatchError

DIGITS = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
LABELS = load_digits().target


def save(path: Path, pixels: Any, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)
    return path


def blank(path: Path, value: int, size: tuple[int, int] = (40, 40)) -> Path:
    return save(path, np.full(size[::-1], value))


def kinds(user: UserData) -> dict[str, Finding]:
    return {finding.kind: finding for finding in user.findings}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of two images, three unlabeled ones, two to test on; each image has a gray of its own."""
    root = tmp_path / "pets"
    for value, name in enumerate(
        ["cat/a.png", "cat/deep/b.png", "dog/a.png", "dog/b.bmp", "unlabeled/1.png", "unlabeled/x/2.png",
         "unlabeled/x/y/3.png", "test/cat/t.png", "test/dog/t.png"]
    ):  # fmt: skip
        blank(root / name, 10 * value)
    return root


def test_layout(pets: Path) -> None:
    user = read_folder(pets)
    assert (user.name, user.classes) == ("pets", ("cat", "dog"))
    assert user.files == (
        "cat/a.png", "cat/deep/b.png", "dog/a.png", "dog/b.bmp", "unlabeled/1.png", "unlabeled/x/2.png",
        "unlabeled/x/y/3.png", "test/cat/t.png", "test/dog/t.png",
    )  # fmt: skip
    assert user.labels.tolist() == [0, 0, 1, 1, UNKNOWN, UNKNOWN, UNKNOWN, 0, 1]
    assert user.labels.dtype == np.int64
    assert user.part == ("train",) * 7 + ("test",) * 2
    assert user.inputs.shape == (9, 32, 32, 1)
    assert isinstance(user.inputs, np.memmap)
    for row, image in enumerate(user.inputs):
        assert (image == 10 * row).all()
    assert user.findings == ()
    assert (len(user.train), len(user.test)) == (7, 2)
    assert isinstance(user.train.inputs, np.memmap)
    assert user.sizes is not None
    assert user.sizes.tolist() == [[40, 40]] * 9
    assert user.modes == ("L",) * 9


def test_names_with_spaces_and_unicode(tmp_path: Path) -> None:
    for name in ["red fox", "猫", "Ångström's"]:
        blank(tmp_path / name / "ein bild.png", 1)
    blank(tmp_path / "unlabeled" / "ü.png", 1)
    user = read_folder(tmp_path)
    assert user.classes == ("red fox", "Ångström's", "猫")
    assert user.files[0] == "red fox/ein bild.png"


# ------------------------------------------------------------------------------------------------ formats and modes


@pytest.mark.parametrize(
    "suffix", ["png", "jpg", "jpeg", "jfif", "webp", "bmp", "tif", "tiff", "gif", "avif", "PNG", "JPG"]
)
def test_formats(suffix: str, tmp_path: Path) -> None:
    gray = np.full((48, 48), 200, np.uint8)
    lossless = {"lossless": True} if suffix == "webp" else {}
    pixels = np.stack([gray] * 3, axis=-1) if suffix in ("webp", "avif") else gray
    path = save(tmp_path / f"a/1.{suffix}", pixels, **lossless)
    blank(tmp_path / "b/1.png", 0)
    user = read_folder(tmp_path, image_size=32, channels=1)
    assert path.is_file()
    assert np.abs(user.inputs[0].astype(int) - 200).max() <= 1


def test_pictures_of_a_phone(tmp_path: Path) -> None:
    """HEIC, upright, whatever the file is called; the decoder is an extra, and whoever lacks it reads what to do."""
    heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed: pip install 'mixmatch[heic]'")
    heif.register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left half, white, is the upper one
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, :32] = 255
    for file in ("a/IMG_1.HEIC", "a/renamed.jpg", "b/1.heif"):
        save(tmp_path / file, pixels, format="HEIF", quality=95, exif=exif.tobytes())
    user = read_folder(tmp_path, image_size=32)
    assert user.files == ("a/IMG_1.HEIC", "a/renamed.jpg", "b/1.heif")
    assert [row.mean().round() for image in user.inputs for row in (image[:14], image[-14:])] == [255, 0] * 3
    blank(tmp_path / "a/2.png", 0)
    blank(tmp_path / "b/2.png", 0)

    without = "import sys; sys.modules['pillow_heif'] = None; from mixmatch.__main__ import main; main()"
    check = [sys.executable, "-c", without, "data", "check", tmp_path]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "2 images of a format that is not read: left out (.heic 1, .heif 1)" in said
    assert "pip install 'mixmatch[heic]' to read HEIC, or convert them to JPEG or PNG" in said
    assert "a/renamed.jpg: a HEIC image, which takes pip install 'mixmatch[heic]'" in said
    for file in ("a/renamed.jpg", "a/2.png", "b/2.png"):
        (tmp_path / file).unlink()
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.stderr == (  # not that images are to be put there: they are there
        f"error: no image in {tmp_path} can be read; 2 images of a format that is not read: left out (.heic 1, "
        ".heif 1): pip install 'mixmatch[heic]' to read HEIC, or convert them to JPEG or PNG\n"
    )


def test_a_decoder_of_heic_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built for another Python: all other images are read."""
    heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed: pip install 'mixmatch[heic]'")
    heif.register_heif_opener()
    for label in ("a", "b"):
        save(tmp_path / f"{label}/1.png", np.zeros((32, 32, 3), np.uint8))
    save(tmp_path / "a/2.heic", np.zeros((32, 32, 3), np.uint8), format="HEIF")
    images_module._register_heic.cache_clear()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    user = read_folder(tmp_path, image_size=32)
    assert user.files == ("a/1.png", "b/1.png")
    assert "a/2.heic: import of pillow_heif halted" in kinds(user)["unreadable"].message


def test_a_pillow_that_knows_no_avif() -> None:
    """As before its version 11.3, which warns of what it does not know."""
    program = "from PIL import features; del features.modules['avif']; from mixmatch.data.user.images import SUFFIXES"
    words = [sys.executable, "-W", "error::UserWarning", "-c", f"{program}; print('.avif' in SUFFIXES)"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_modes(tmp_path: Path) -> None:
    """Half-transparent black over white is gray; palettes, 1 bit and 16 bits keep their brightness."""
    where = tmp_path / "a"
    where.mkdir()
    rgba = np.zeros((32, 32, 4), np.uint8)
    rgba[..., 3] = 102  # 40 % black over white: 255 * 0.6 = 153
    Image.fromarray(rgba).save(where / "rgba.png")
    Image.fromarray(rgba[..., 2:]).save(where / "la.png")
    Image.fromarray(np.full((32, 32), 0xABCD, np.uint16)).save(where / "16bit.png")
    Image.fromarray(np.full((32, 32), 0xABCD, np.uint16)).save(where / "16bit.tif")
    Image.fromarray(np.full((32, 32), 0.5, np.float32)).save(where / "float.tif")
    Image.new("1", (32, 32), 1).save(where / "bit.png")
    palette = Image.new("P", (32, 32), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    palette.save(where / "palette.png")
    palette.save(where / "see-through.png", transparency=1)
    Image.new("CMYK", (32, 32), (0, 0, 0, 255)).save(where / "cmyk.jpg")
    blank(tmp_path / "b/1.png", 0)
    user = read_folder(tmp_path, image_size=32)
    colors = {Path(file).name: image[0, 0].tolist() for file, image in zip(user.files, user.inputs, strict=True)}
    assert user.inputs.shape[-1] == 3
    assert colors["rgba.png"] == [153, 153, 153]
    assert colors["la.png"] == [153, 153, 153]
    assert colors["16bit.png"] == colors["16bit.tif"] == [0xAB] * 3
    assert colors["float.tif"] == [128] * 3
    assert colors["bit.png"] == [255] * 3
    assert colors["palette.png"] == [10, 200, 30]
    assert colors["see-through.png"] == [255] * 3
    assert max(colors["cmyk.jpg"]) <= 2
    assert set(user.modes) == {"RGBA", "LA", "I;16", "F", "1", "P", "CMYK", "L"}


def test_only_gray_images_have_one_channel(tmp_path: Path) -> None:
    gray_palette = Image.new("P", (32, 32), 1)
    gray_palette.putpalette([0, 0, 0, 77, 77, 77])
    (tmp_path / "a").mkdir()
    gray_palette.save(tmp_path / "a/1.png")
    Image.fromarray(np.full((32, 32), 0x4D00, np.uint16)).save(tmp_path / "a/2.png")
    blank(tmp_path / "b/1.png", 77)
    user = read_folder(tmp_path)
    assert user.inputs.shape == (3, 32, 32, 1)
    assert (user.inputs == 77).all()
    save(tmp_path / "unlabeled/1.png", np.full((32, 32, 3), 77))
    assert read_folder(tmp_path).inputs.shape == (4, 32, 32, 3)
    assert read_folder(tmp_path, channels=1).inputs.shape == (4, 32, 32, 1)


def test_exif_orientation(tmp_path: Path) -> None:
    """Orientation 6: the camera was turned, so the stored image has to be turned by 90 degrees clockwise."""
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, :32] = 255  # left half white: upright, the upper half
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "a/1.jpg", pixels, exif=exif, quality=95)
    save(tmp_path / "a/2.png", pixels, exif=exif)
    blank(tmp_path / "b/1.png", 0)
    for image in read_folder(tmp_path, image_size=32).inputs[:2].astype(int):
        assert image[:14].min() > 240
        assert image[18:].max() < 15


def test_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("L", (32, 32), value) for value in (50, 150, 250)]
    (tmp_path / "a").mkdir()
    for name in ("1.gif", "2.tif", "3.webp"):
        frames[0].save(tmp_path / "a" / name, save_all=True, append_images=frames[1:])
    blank(tmp_path / "b/1.png", 0)
    images = read_folder(tmp_path, image_size=32, channels=1).inputs[:3].astype(int)
    assert np.abs(images - 50).max() <= 2


def test_resized_whole_and_antialiased(tmp_path: Path) -> None:
    """A fine checkerboard becomes its mean; a wide image is squeezed, so its right edge is still there."""
    board = np.indices((512, 512)).sum(axis=0) % 2 * 255
    save(tmp_path / "a/board.png", board)
    wide = np.zeros((100, 400), np.uint8)
    wide[:, 300:] = 255
    save(tmp_path / "a/wide.png", wide)
    blank(tmp_path / "b/pixel.png", 9, (1, 1))
    user = read_folder(tmp_path, image_size=64)
    assert np.abs(user.inputs[0, 4:-4, 4:-4].astype(int) - 127.5).max() < 2
    assert user.inputs[1, :, :44].max() <= 20
    assert user.inputs[1, :, 52:].min() >= 235
    assert (user.inputs[2] == 9).all()


@pytest.mark.parametrize(("width", "height"), [(1600, 1200), (300, 200)])
def test_drafted_jpeg_is_close_to_plain_pillow(width: int, height: int, tmp_path: Path) -> None:
    """Decoding a photo at an eighth of its size changes it less than the eye sees; one of 300 pixels is too small."""
    coarse = np.random.default_rng(0).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    photo = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    path = tmp_path / "photo.jpg"
    photo.save(path, quality=92)
    drafted = decode_image(path, 64, 64, 3)[0].astype(int)
    with Image.open(path) as image:
        plain = np.asarray(image.resize((64, 64), Image.Resampling.BICUBIC), int)
    assert np.abs(drafted - plain).mean() < 1.5


def test_digits_in_mixed_sizes(tmp_path: Path) -> None:
    """Enlarged by whole factors and read at one size, the same digit is the same picture whatever its file was."""
    for digit in (0, 1):
        first = DIGITS[np.flatnonzero(digit == LABELS)[0]]
        for factor, suffix in ((4, "png"), (8, "bmp"), (16, "tiff")):
            save(tmp_path / f"{digit}/{factor}.{suffix}", np.kron(first, np.ones((factor, factor))))
    user = read_folder(tmp_path)
    assert user.inputs.shape[1:] == (64, 64, 1)
    for start in (0, 3):
        means = user.inputs[start : start + 3, ..., 0].reshape(3, 8, 8, 8, 8).mean(axis=(2, 4))
        digit = DIGITS[np.flatnonzero(user.labels[start] == LABELS)[0]]
        assert np.abs(means - digit).max() < 16
        assert np.abs(means[0] - means).max() < 16


@pytest.mark.parametrize(
    ("sides", "size"),
    [
        ([1], 32),
        ([33], 32),
        ([40], 32),
        ([41], 48),
        ([100], 96),
        ([113], 128),
        ([5000], 224),
        ([30, 60, 70], 64),
        ([], 32),
    ],
)
def test_default_size(sides: list[int], size: int) -> None:
    assert default_size([Header(side, 10 * side, "RGB", False) for side in sides]) == size
    assert size in IMAGE_SIZES


# --------------------------------------------------------------------------------------------------- unusable files


def png_of(width: int, height: int) -> bytes:
    """A PNG of 60 bytes that says it has this size, as a decompression bomb does."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_damaged_files_are_named_and_left_out(pets: Path, recwarn: pytest.WarningsRecorder) -> None:
    whole = (pets / "cat/a.png").read_bytes()
    (pets / "cat/cut.png").write_bytes(whole[: len(whole) - 30])
    (pets / "cat/empty.jpg").touch()
    (pets / "unlabeled/text.jpg").write_text("not an image")
    save(pets / "unlabeled/half.jpg", np.random.default_rng(0).integers(0, 256, (200, 200, 3)))
    half = (pets / "unlabeled/half.jpg").read_bytes()
    (pets / "unlabeled/half.jpg").write_bytes(half[: len(half) // 2])
    user = read_folder(pets)
    assert len(user) == 9
    assert [int(image.mean()) for image in user.inputs] == list(range(0, 90, 10))
    finding = kinds(user)["unreadable"]
    assert set(finding.files) == {"cat/cut.png", "cat/empty.jpg", "unlabeled/text.jpg", "unlabeled/half.jpg"}
    assert finding.severity == "warning"
    assert finding.advice
    assert "4 images" in finding.message
    assert read_folder(pets).findings == user.findings  # and the cache remembers them
    assert not recwarn.list


def test_a_row_of_millions_of_pixels(pets: Path) -> None:
    """Pillow reads such a file ever more slowly."""
    (pets / "dog/long.png").write_bytes(png_of(1_000_001, 1))
    assert kinds(read_folder(pets))["too-large"].files == ("dog/long.png",)


@pytest.mark.parametrize(("width", "height"), [(10_001, 10_000), (100_000, 100_000)])
def test_decompression_bomb(width: int, height: int, pets: Path, recwarn: pytest.WarningsRecorder) -> None:
    (pets / "dog/bomb.png").write_bytes(png_of(width, height))
    user = read_folder(pets)
    finding = kinds(user)["too-large"]
    assert finding.files == ("dog/bomb.png",)
    assert "dog/bomb.png" in finding.message
    assert "bomb" in finding.message
    assert "dog/bomb.png" not in user.files
    assert not recwarn.list
    assert kinds(read_folder(pets))["too-large"] == finding  # and the cache remembers it


def test_other_files(pets: Path) -> None:
    for name in ("Thumbs.db", ".DS_Store", ".hidden.png", "desktop.ini", "__MACOSX/a.png", ".git/b.png"):
        (pets / "cat" / name).parent.mkdir(exist_ok=True)
        (pets / "cat" / name).touch()
    (pets / "cat/notes.txt").touch()
    (pets / "cat/camera.NEF").touch()
    blank(pets / "stray.png", 1)
    blank(pets / "test/stray.png", 1)
    (pets / "mouse").mkdir()
    (pets / "horse").mkdir()  # not empty, though none of its images is read
    (pets / "horse/camera.NEF").touch()
    user = read_folder(pets)
    found = kinds(user)
    assert len(user) == 9
    assert found.pop("not-images").files == ("cat/notes.txt",)
    assert found.pop("format").files == ("cat/camera.NEF", "horse/camera.NEF")
    assert found.pop("stray").files == ("stray.png", "test/stray.png")
    assert found.pop("empty-folder").files == ("mouse",)
    assert not found


def test_lookalike_folder_names(pets: Path) -> None:
    (pets / "unlabeled").rename(pets / "Unlabelled")
    user = read_folder(pets)
    assert user.classes == ("Unlabelled", "cat", "dog")
    assert "'Unlabelled' is taken for a class" in kinds(user)["class-name"].message
    assert kinds(user)["no-unlabeled"].severity == "warning"


def test_symlinks(pets: Path, tmp_path: Path) -> None:
    """Loops end, a link elsewhere is followed, an image is found in its own place and only once."""
    elsewhere = blank(tmp_path / "elsewhere/e.png", 90).parent
    (pets / "cat/loop").symlink_to(pets)
    (pets / "cat/self").symlink_to(".")
    (pets / "aardvark").symlink_to(pets / "dog")
    (pets / "unlabeled/more").symlink_to(elsewhere)
    (pets / "unlabeled/gone.png").symlink_to("nowhere.png")
    (pets / "unlabeled/round.png").symlink_to("round.png")
    (pets / "dog/linked.png").symlink_to(pets / "dog/a.png")
    user = read_folder(pets)
    assert user.classes == ("cat", "dog")
    assert len(user) == 11
    assert "unlabeled/more/e.png" in user.files
    assert "dog/linked.png" in user.files
    assert set(kinds(user)["link"].files) == {"aardvark", "cat/loop", "cat/self"}
    assert kinds(user)["link"].severity == "info"
    assert set(kinds(user)["unreadable-folder"].files) == {"unlabeled/gone.png", "unlabeled/round.png"}


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """As root, no folder is unreadable: the refusal is made up."""
    scandir = os.scandir

    def refuse(folder: Path) -> None:
        def refusing(path: Path) -> Any:
            if Path(path) == folder:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refusing)

    return refuse


def test_unreadable_folder(pets: Path, refuse: Callable[[Path], None]) -> None:
    refuse(pets / "unlabeled/x")
    user = read_folder(pets)
    assert len(user) == 7
    finding = kinds(user)["unreadable-folder"]
    assert finding.files == ("unlabeled/x",)
    assert "unlabeled/x (Permission denied)" in finding.message


def test_what_cannot_be_read_is_named_by_the_error_it_causes(pets: Path, refuse: Callable[[Path], None]) -> None:
    refuse(pets)
    with pytest.raises(MixMatchError, match=r"^cannot read .*: Permission denied$"):
        read_folder(pets)
    refuse(pets / "dog")
    with pytest.raises(MixMatchError, match=r"one class only \('cat'\).*; cannot read dog \(Permission denied\)"):
        read_folder(pets)
    refuse(Path("nothing"))
    for file in (pets / "dog").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(MixMatchError, match=r"one class only \('cat'\).*; \d images? cannot be read: .*dog/"):
        read_folder(pets)


def test_images_to_predict_in_an_unreadable_folder(pets: Path, refuse: Callable[[Path], None]) -> None:
    files = [Path(name) for name in find_images([pets])]
    assert files == sorted(file for file in pets.rglob("*") if file.is_file())
    refuse(pets / "dog")
    expected = [file for file in files if file.parent != pets / "dog"]
    # Decoding it tells why not.
    assert [Path(name) for name in find_images([pets])] == sorted([*expected, pets / "dog"])
    with pytest.raises(MixMatchError, match=r"cannot read .*dog: Permission denied"):
        list(find_images([pets / "dog"]))


def test_images_to_predict_once(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that overlap, in whatever form and order."""
    files = list(find_images([pets]))
    monkeypatch.chdir(pets)
    one, folder = Path(files[0]).relative_to(pets), Path(files[0]).parent
    for paths in ([one, "."], [".", one], ["**/*"], [folder, "*/*.png", pets], [f"../{pets.name}", "*"]):
        assert sorted(find_images(paths, once=True)) == files


def test_test_classes_that_training_lacks(pets: Path) -> None:
    blank(pets / "test/cta/a.png", 1)
    blank(pets / "test/bird/a.png", 1)
    user = read_folder(pets)
    finding = kinds(user)["unknown-class"]
    assert finding.severity == "error"
    assert set(finding.files) == {"test/bird/a.png", "test/cta/a.png"}
    assert user.classes == ("cat", "dog")
    assert user.files[7:] == ("test/cat/t.png", "test/dog/t.png")
    assert isinstance(user.inputs, np.memmap)
    assert [int(image.mean()) for image in user.inputs] == list(range(0, 90, 10))


def test_class_of_damaged_images(pets: Path) -> None:
    (pets / "ant").mkdir()
    (pets / "ant/a.png").write_text("?")
    blank(pets / "test/ant/t.png", 33)
    user = read_folder(pets)
    assert user.classes == ("cat", "dog")
    assert "ant" in kinds(user)["empty-class"].message
    assert kinds(user)["unknown-class"].files == ("test/ant/t.png",)
    assert [int(image.mean()) for image in user.inputs] == list(range(0, 90, 10))


# ----------------------------------------------------------------------------------------------------------- errors


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"there is no folder .*nowhere"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(MixMatchError, match="is not a folder"):
        read_folder(tmp_path / "file")


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="there are no images in"):
        read_folder(tmp_path)


def test_one_class(tmp_path: Path) -> None:
    blank(tmp_path / "cat/a.png", 1)
    blank(tmp_path / "unlabeled/a.png", 1)
    with pytest.raises(MixMatchError, match=r"one class only \('cat'\)"):
        read_folder(tmp_path)


def test_all_unlabeled(tmp_path: Path) -> None:
    blank(tmp_path / "unlabeled/a.png", 1)
    blank(tmp_path / "unlabeled/b.png", 1)
    with pytest.raises(
        MixMatchError, match="has no labeled images to train on, only 2 others: put images into"
    ) as found:
        read_folder(tmp_path)
    assert str(found.value).endswith(f", or label them in the browser: mixmatch label {tmp_path}")


def test_no_unlabeled(tmp_path: Path) -> None:
    blank(tmp_path / "cat/a.png", 1)
    blank(tmp_path / "dog/a.png", 1)
    user = read_folder(tmp_path)
    assert [finding.kind for finding in user.findings] == ["no-unlabeled"]
    assert user.findings[0].severity == "warning"


def test_nothing_readable(tmp_path: Path) -> None:
    for name in ("cat/a.png", "dog/a.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("?")
    with pytest.raises(MixMatchError, match=r"can be read, for example cat/a.png: not an image"):
        read_folder(tmp_path)
    assert not list((tmp_path / ".mixmatch-cache").glob("*"))


@pytest.mark.parametrize("options", [{"image_size": 16}, {"image_size": 225}, {"channels": 4}])
def test_options(options: dict[str, int], pets: Path) -> None:
    with pytest.raises(MixMatchError):
        read_folder(pets, **options)  # type: ignore[arg-type]


def test_full_disk(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(images_module, "write_rows", full)
    with pytest.raises(MixMatchError, match=r"cannot keep the 9 decoded images in .*: No space left on device"):
        read_folder(pets)


# ------------------------------------------------------------------------------------------------------- labels file


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for value, name in enumerate(["1.png", "2.png", "sub/3.png", "sub/é.png", "5.png"]):
        blank(tmp_path / "tree" / name, 10 * value)
    return tmp_path / "tree"


def csv_file(tree: Path, text: str) -> Path:
    path = tree.parent / "labels.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_labels_file(tree: Path) -> None:
    labels = csv_file(tree, "file,label,part\n1.png,red fox,\n./2.png,猫,train\nsub\\3.png,,\nsub/é.png,猫,test\n")
    user = read_folder(tree, labels_file=labels)
    assert user.classes == ("red fox", "猫")
    assert user.files == ("1.png", "2.png", "5.png", "sub/3.png", "sub/é.png")
    assert user.labels.tolist() == [0, 1, UNKNOWN, UNKNOWN, 1]
    assert user.part == ("train",) * 4 + ("test",)
    assert [int(image.mean()) for image in user.inputs] == [0, 10, 40, 20, 30]
    assert kinds(user)["unnamed"].files == ("5.png",)


def test_labels_file_as_other_programs_write_it(tree: Path) -> None:
    """Excel's semicolons and byte order mark, a Mac's decomposed accents, absolute paths, a file without a suffix."""
    (tree / "5.png").rename(tree / "five")
    accent = unicodedata.normalize("NFD", "é")
    assert len(accent) == 2
    rows = f"file;label\n{tree / '1.png'};a\n2.png;b\nsub/{accent}.png;b\nfive;a\n"
    user = read_folder(tree, labels_file=csv_file(tree, "\ufeff" + rows))
    assert user.files == ("1.png", "five", "2.png", "sub/é.png", "sub/3.png")
    assert user.labels.tolist() == [0, 0, 1, 1, UNKNOWN]


def test_repeated_lines(tree: Path) -> None:
    user = read_folder(tree, labels_file=csv_file(tree, "file,label\n1.png,a\n2.png,b\n1.png,a\n"))
    assert kinds(user)["repeated-line"].files == ("1.png",)
    assert "labels.csv repeats an earlier one" in kinds(user)["repeated-line"].message
    assert len(user) == 5


def test_images_that_a_labels_file_says_to_ignore(tree: Path) -> None:
    rows = "file,label,part\n1.png,a,\n2.png,b,\nsub/3.png,,ignore\n"
    user = read_folder(tree, labels_file=csv_file(tree, rows))
    assert "sub/3.png" not in user.files
    assert len(user) == 4
    assert kinds(user)["ignored"].files == ("sub/3.png",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("file,label,part\n1.png,a,\n1.png,,ignore\n", "as 'a' in line 2 and to be ignored in line 3"),
        ("file,labels\n1.png,a\n", "has no column 'label': did you mean 'labels'?"),
        ("name,label\n1.png,a\n", r"has no column 'file' \(it has name, label\)"),
        ("file,label\n1.png,a\n1.png,b\n", "names 1.png twice, as 'a' in line 2 and as 'b' in line 3"),
        ("file,label\n1.png,a\n1.png,\n", "names 1.png twice, as 'a' in line 2 and as '' in line 3"),
        ("file,label\n9.png,b\nsub,b\n", r"2 files that do not exist in .*'9.png' \(line 2\), 'sub' \(line 3\)"),
        ("file,label\n1.png,a\n,b\n", r"1 file that does not exist in .*'' \(line 3\)"),
        ("file,label\n1.png,a\n2.png,a\n", "one class only"),
        ("file,label\n1.png,\n2.png,\n", "has no labeled images"),
        ("file,label\n1.png,a,b\n", "line 2 has 3 fields, but the header 2"),
        ("file,label,part\n1.png,a,valid\n", "line 2: part is 'valid'"),
        ("file,file,label\n1.png,1.png,a\n", "several columns named 'file'"),
        ("file,label\n", "has a header but no rows"),
        ("", "is empty"),
    ],
)  # fmt: skip
def test_labels_file_errors(text: str, why: str, tree: Path) -> None:
    with pytest.raises(MixMatchError, match=why) as caught:
        read_folder(tree, labels_file=csv_file(tree, text))
    assert "\n" not in str(caught.value)


def test_labels_file_that_is_none(tree: Path) -> None:
    with pytest.raises(MixMatchError, match=r"cannot read .*nowhere.csv: No such file"):
        read_folder(tree, labels_file=tree / "nowhere.csv")
    with pytest.raises(MixMatchError, match="not text in UTF-8"):
        read_folder(tree, labels_file=tree / "1.png")


# ------------------------------------------------------------------------------------------------------------ cache


def cached(root: Path) -> list[Path]:
    return sorted((root / ".mixmatch-cache").glob("*.npy"))


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded from now on."""
    names: list[str] = []
    decode_image = images_module.decode_image
    monkeypatch.setattr(
        images_module, "decode_image", lambda path, *a, **k: (names.append(path.name), decode_image(path, *a, **k))[1]
    )
    return names


def test_second_start_decodes_nothing(pets: Path, decodings: list[str]) -> None:
    first = read_folder(pets)
    (path,) = cached(pets)
    before = path.stat()
    assert len(decodings) == 9
    second = read_folder(pets)
    after = path.stat()
    assert len(decodings) == 9
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    np.testing.assert_array_equal(first.inputs, second.inputs)
    assert (first.files, first.modes, first.findings) == (second.files, second.modes, second.findings)


def test_only_what_is_new_is_decoded(pets: Path, decodings: list[str]) -> None:
    """Labeling a few more images must not cost another hour of decoding."""
    read_folder(pets)
    decodings.clear()
    blank(pets / "unlabeled/new.png", 200)
    blank(pets / "dog/a.png", 123, (41, 41))
    (pets / "unlabeled/1.png").rename(pets / "cat/moved.png")
    (pets / "dog/b.bmp").unlink()
    user = read_folder(pets)
    assert sorted(decodings) == ["a.png", "moved.png", "new.png"]
    expected = {
        "cat/a.png": 0,
        "cat/deep/b.png": 10,
        "cat/moved.png": 40,
        "dog/a.png": 123,
        "unlabeled/new.png": 200,
        "unlabeled/x/2.png": 50,
        "unlabeled/x/y/3.png": 60,
        "test/cat/t.png": 70,
        "test/dog/t.png": 80,
    }
    assert dict(zip(user.files, (int(image.mean()) for image in user.inputs), strict=True)) == expected
    assert len(cached(pets)) == 1
    assert len(list((pets / ".mixmatch-cache").iterdir())) == 2


def test_what_a_killed_decode_left_goes_when_the_next_begins(pets: Path) -> None:
    read_folder(pets)
    (path,) = cached(pets)
    left = path.with_name(f".{path.name}.{'0' * 32}.part")
    left.touch()
    os.utime(left, (time.time() - 3600,) * 2)
    blank(pets / "unlabeled/new.png", 200)
    read_folder(pets)
    assert not left.exists()


def test_what_another_process_has_just_written_stays(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy disk takes between the end of a decode and its name."""

    def busy(handle: int) -> None:
        (part,) = (pets / ".mixmatch-cache").glob("*.npy.*.part")
        os.utime(part, (time.time() - 3600,) * 2)
        remove_abandoned(part.with_name(part.name[1 : -len(f".{'0' * 32}.part")]))

    monkeypatch.setattr(os, "fsync", busy)
    assert len(read_folder(pets)) == 9
    assert len(cached(pets)) == 1


def test_sizes_do_not_evict_each_other(pets: Path, tmp_path: Path, decodings: list[str]) -> None:
    for size in (32, 48, 32, 48):
        assert read_folder(pets, image_size=size, cache_dir=tmp_path / "cache").inputs.shape[1] == size
    assert len(decodings) == 18
    assert not (pets / ".mixmatch-cache").exists()


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"x" * 5000])
@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_damaged_cache_is_made_again(damage: bytes, suffix: str, pets: Path) -> None:
    expected = np.array(read_folder(pets).inputs)
    cached(pets)[0].with_suffix(suffix).write_bytes(damage)
    np.testing.assert_array_equal(read_folder(pets).inputs, expected)


def test_progress_counts_every_file(pets: Path) -> None:
    (pets / "cat/empty.png").touch()
    told: list[tuple[int, int]] = []
    read_folder(pets, progress=lambda done, total: told.append((done, total)))
    assert told == [(i, 10) for i in range(1, 11)]


def test_an_interruption_leaves_nothing_behind(pets: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_folder(pets, progress=interrupt)
    assert list((pets / ".mixmatch-cache").iterdir()) == []


def test_parallel_map_keeps_the_order() -> None:
    assert list(parallel_map(lambda n: n * n, range(1000))) == [n * n for n in range(1000)]


# ----------------------------------------------------------------------------------------------------------- memory

# RssAnon: what the process itself holds. Mapped files are left out, because the system can drop them at any time.
PROGRAM = """if True:
    import pathlib, re, sys, threading, time
    import numpy, PIL.Image, PIL.JpegImagePlugin, PIL.ImageOps
    from mixmatch.data.user.folder import read_folder
    def memory():
        return int(re.search(r"RssAnon:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1000
    peak = before = memory()
    def watch(done, total):
        global peak
        if done % 50 == 0:
            peak = max(peak, memory())
    user = read_folder(sys.argv[1], image_size=192, progress=watch)
    print(max(peak, memory()) - before, user.inputs.nbytes / 1e6, len(user))
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc to measure memory")
def test_memory(tmp_path: Path) -> None:
    """2,000 images of 192 x 192 are 221 MB; reading them takes a small part of that."""
    content = save(tmp_path / "a/0.jpg", np.random.default_rng(0).integers(0, 256, (24, 24, 3))).read_bytes()
    for i in range(2000):
        path = tmp_path / ("a", "b", "unlabeled")[min(i, 2)] / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    growth, size, rows = (float(value) for value in done.stdout.split())
    print(f"{growth:.1f} MB for {size:.1f} MB of images")
    assert rows == 2000
    assert size > 220
    assert growth < 40


def parts(folder: Path, *files: str) -> UserData:
    """A folder with an image under each of these names."""
    for i, file in enumerate(files):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), i, np.uint8)).save(folder / file)
    return read_folder(folder)


def test_classes_under_train(tmp_path: Path) -> None:
    files = ("train/cat/a.png", "train/dog/b.png", "test/cat/c.png", "train/unlabeled/d.png", "unlabeled/deep/e.png")
    user = parts(tmp_path, *files)
    assert user.classes == ("cat", "dog")
    assert [user.files[row] for row in user.labeled] == ["train/cat/a.png", "train/dog/b.png"]
    assert {user.files[row] for row in user.unlabeled} == {"train/unlabeled/d.png", "unlabeled/deep/e.png"}
    assert [user.files[row] for row in user.tested] == ["test/cat/c.png"]
    assert user.test.labels.tolist() == [0]
    assert [finding.kind for finding in user.findings] == ["layout"]
    assert user.findings[0].severity == "info"
    assert user.findings[0].message == ("read as a folder of parts: classes under train/, the test set under test/")


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
def test_validation_images_are_the_test_set_if_there_is_no_other(name: str, tmp_path: Path) -> None:
    files = ("Train/cat/a.png", "Train/dog/b.png", f"{name}/dog/c.png", "unlabeled/e.png")
    user = parts(tmp_path, *files)
    assert [user.files[row] for row in user.tested] == [f"{name}/dog/c.png"]
    assert kinds(user)["layout"].message.endswith(f"classes under Train/, the test set under {name}/")
    assert to_data(user, 1, "two-classes").basis.sentence == f"Evaluated on the 1 images under {name}/."
    user = parts(tmp_path, "test/cat/f.png")
    assert [user.files[row] for row in user.tested] == ["test/cat/f.png"]
    assert f"{name}/dog/c.png" not in user.files  # neither trained on nor tested
    assert kinds(user)["unused"].files == (f"{name}/dog/c.png",)
    assert kinds(user)["unused"].message == f"1 image under {name}/ not used: test/ is the test set"


def test_odd_files_in_a_folder_of_parts(tmp_path: Path) -> None:
    (tmp_path / "train" / "empty").mkdir(parents=True)
    files = ("train/cat/a.png", "train/dog/b.png", "train/loose.png", "test/1.png", "val/cat/2.png", "unlabeled/c.png")
    user = parts(tmp_path, *files)
    assert kinds(user)["stray"].files == ("test/1.png", "train/loose.png")
    assert kinds(user)["empty-folder"].files == ("train/empty",)
    assert [user.files[row] for row in user.tested] == ["val/cat/2.png"]  # what lies in test/ has no class


def test_trains_are_a_class_beside_others(tmp_path: Path) -> None:
    user = parts(tmp_path, "train/steam/a.png", "bus/b.png", "unlabeled/c.png", "test/bus/d.png")
    assert user.classes == ("bus", "train")
    assert "'train' is taken for a class" in kinds(user)["class-name"].message
