"""Strong augmentation of single images, written with Pillow: what the batched code is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_sample_images

ENHANCE = {"color": ImageEnhance.Color, "contrast": ImageEnhance.Contrast, "brightness": ImageEnhance.Brightness,
           "sharpness": ImageEnhance.Sharpness}  # fmt: skip


WAYS = (Image.Resampling.LANCZOS, Image.Resampling.BICUBIC, Image.Resampling.BILINEAR, Image.Resampling.BOX,
        Image.Resampling.HAMMING, Image.Resampling.NEAREST)  # fmt: skip


def images(height: int, width: int, channels: int) -> np.ndarray:
    """Uint8 (6, H, W, C): parts of photographs, noise, noise of few values, a gradient and one color."""
    rng = np.random.default_rng(height * 1000 + width)
    parts = []
    for photo in load_sample_images().images:
        y, x = rng.integers(0, photo.shape[0] - 2 * height), rng.integers(0, photo.shape[1] - 2 * width)
        parts.append(photo[y : y + 2 * height : 2, x : x + 2 * width : 2, :channels])
    shape = (height, width, channels)
    parts.append(rng.integers(0, 256, shape))
    parts.append(rng.integers(100, 104, shape))
    parts.append(np.arange(height * width * channels).reshape(shape) * 255 // (height * width * channels))
    parts.append(np.full(shape, 77))
    return np.stack(parts).astype(np.uint8)


def to_pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0])


def from_pillow(image: Image.Image) -> np.ndarray:
    array = np.asarray(image)
    return array if array.ndim == 3 else array[:, :, None]


def operate(image: Image.Image, name: str, amount: float) -> Image.Image:
    """One operation of `mixmatch.augment.operations`."""
    match name:
        case "identity":
            return image
        case "autocontrast" | "equalize" | "invert":
            return Image.blend(image, getattr(ImageOps, name)(image), amount)
        case "rotate":
            return image.rotate(amount)
        case "posterize":
            return ImageOps.posterize(image, int(amount))
        case "solarize":
            return ImageOps.solarize(image, amount)
        case "blur" | "smooth":
            return Image.blend(image, image.filter(getattr(ImageFilter, name.upper())), amount)
        case "rescale":
            return rescale(image, amount % 1, WAYS[int(amount)])
        case "cutout":
            return cutout(image, int(amount), *(np.float32(place) for place in (amount % 1, 1 - amount % 1)))
    if name in ENHANCE:
        return ENHANCE[name](image).enhance(amount)
    matrix = {"shear_x": (1, amount, 0, 0, 1, 0), "shear_y": (1, 0, 0, amount, 1, 0),
              "translate_x": (1, 0, amount, 0, 1, 0), "translate_y": (1, 0, 0, 0, 1, amount)}[name]  # fmt: skip
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def rescale(image: Image.Image, margin: float, way: Image.Resampling) -> Image.Image:
    """Crop by shares of the size, then resize."""
    width, height = image.size
    box = (margin * width, margin * height, width * (1 - margin), height * (1 - margin))
    cropped = image.crop(box)
    if way == Image.Resampling.NEAREST and (width & (width - 1) or height & (height - 1)):
        # Pillow adds up positions in float64, whose sums may fall just short of a border that is met exactly.
        rows, columns = (
            (2 * np.arange(n) + 1) * m // (2 * n) for n, m in ((height, cropped.height), (width, cropped.width))
        )
        return Image.fromarray(np.asarray(cropped)[rows[:, None], columns])
    return cropped.resize(image.size, way)


def cutout(image: Image.Image, side: int, down: np.float32, across: np.float32) -> Image.Image:
    """A gray square around a place between 0 and 1, pixel by pixel."""
    image, (width, height) = image.copy(), image.size
    y, x = int(np.float64(down) * height), int(np.float64(across) * width)
    for i in range(max(0, x - side // 2), min(width, x + side // 2)):
        for j in range(max(0, y - side // 2), min(height, y + side // 2)):
            image.putpixel((i, j), (127, 127, 127) if image.mode == "RGB" else 127)
    return image


def crop(image: np.ndarray, pad: int, draws: dict[str, Any]) -> np.ndarray:
    """Flip, then pad by reflection, then crop."""
    height, width, _ = image.shape
    y, x = draws["offset"]
    image = image[:, ::-1] if draws["flip"] else image
    return np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")[y : y + height, x : x + width]


def fixmatch(image: np.ndarray, pad: int, draws: dict[str, Any]) -> np.ndarray:
    """The authors' RandAugment, transparency and all, of one image with the draws of one image. Values in [-1, 1]."""
    image = crop(image, pad, draws)
    height, width, channels = image.shape
    pil = to_pillow(image).convert("RGBA")
    for number, applied, m, negative in zip(
        draws["operation"], draws["applied"], draws["level"].tolist(), draws["negative"], strict=True
    ):
        if not applied:
            continue
        name = NAMES[number]
        if name in ("autocontrast", "equalize"):
            pil = getattr(ImageOps, name)(pil.convert("RGB")).convert("RGBA")
        elif name == "posterize":
            pil = ImageOps.posterize(pil.convert("RGB"), 4 - int(m * 4 / 10)).convert("RGBA")
        elif name == "solarize":
            pil = ImageOps.solarize(pil.convert("RGB"), 256 - int(m * 256 / 10)).convert("RGBA")
        elif name in ENHANCE:
            pil = ENHANCE[name](pil).enhance(float(m) * 1.8 / 10 + 0.1)
        else:
            amount = {"rotate": int(m * 30 / 10), "shear_x": float(m) * 0.3 / 10, "shear_y": float(m) * 0.3 / 10,
                      "translate_x": m * min(width, 32) // 32, "translate_y": m * min(height, 32) // 32}  # fmt: skip
            value = amount.get(name, 0)
            pil = operate(pil, name, -value if negative else value)
    array = np.asarray(pil).astype(np.float64)
    out = array[:, :, :channels] / 127.5 - 1
    out[array[:, :, 3] == 0] = 0
    half = min(16, min(height, width) // 2) // 2
    y, x = (int(np.float64(u) * size) for u, size in zip(draws["center"], (height, width), strict=True))
    out[max(0, y - half) : y + half, max(0, x - half) : x + half] = 0
    return out


def kekmodel(image: np.ndarray, pad: int, draws: dict[str, Any]) -> np.ndarray:
    """FixMatch-pytorch's RandAugment of one image, uint8."""
    pil = to_pillow(crop(image, pad, draws))
    width, height = pil.size
    for number, applied, m, negative in zip(
        draws["operation"], draws["applied"], draws["level"].tolist(), draws["negative"], strict=True
    ):
        name, sign = NAMES[number], -1 if negative else 1
        amount = {"rotate": sign * int(m * 30 / 10), "posterize": int(m * 4 / 10) + 4,
                  "solarize": 256 - int(m * 256 / 10), "translate_x": int(sign * (m * 0.3 / 10) * width),
                  "translate_y": int(sign * (m * 0.3 / 10) * height)}  # fmt: skip
        amount |= dict.fromkeys(ENHANCE, float(m) * 0.9 / 10 + 0.05)
        amount |= dict.fromkeys(("shear_x", "shear_y"), sign * float(m) * 0.3 / 10)
        if applied:
            pil = operate(pil, name, amount.get(name, 1))
    side = min(16, min(height, width) // 2)
    y, x = (float(u) * size for u, size in zip(draws["center"], (height, width), strict=True))
    x0, y0 = int(max(0, x - side / 2.0)), int(max(0, y - side / 2.0))
    box = (x0, y0, int(min(width, x0 + side)), int(min(height, y0 + side)))
    ImageDraw.Draw(pil := pil.copy()).rectangle(box, (127, 127, 127) if pil.mode == "RGB" else 127)
    return from_pillow(pil)


def torchssl(image: np.ndarray, pad: int, draws: dict[str, Any]) -> np.ndarray:
    """TorchSSL's RandAugment of one image, uint8."""
    pil = to_pillow(image)
    width, height = pil.size
    ranges = {"posterize": (4, 8), "rotate": (-30, 30), "solarize": (0, 256)} | dict.fromkeys(ENHANCE, (0.05, 0.95))
    ranges |= dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y"), (-0.3, 0.3))
    for number, u in zip(draws["operation"], draws["level"].tolist(), strict=True):
        low, high = ranges.get(NAMES[number], (1, 1))
        scale = {"translate_x": width, "translate_y": height}.get(NAMES[number], 1)
        pil = operate(pil, NAMES[number], (low + float(high - low) * u) * scale)
    v = float(draws["side"]) * 0.5 * width
    y, x = (size + (1.0 - size) * float(u) for u, size in zip(draws["center"], (height, width), strict=True))
    x0, y0 = int(max(0, x - v / 2.0)), int(max(0, y - v / 2.0))
    box = (x0, y0, min(width, x0 + v), min(height, y0 + v))
    if v > 0:
        ImageDraw.Draw(pil := pil.copy()).rectangle(box, (125, 123, 114) if pil.mode == "RGB" else 123)
    return crop(from_pillow(pil), pad, draws)


def ctaugment(image: np.ndarray, pad: int, draws: dict[str, Any], levels: np.ndarray, hidden: bool) -> np.ndarray:
    """CTAugment of one image with known parameters (slots, 2), uint8."""
    pil = to_pillow(crop(image, pad, draws))
    shorter = min(pil.size)
    policy = zip(draws["operation"], levels.tolist(), draws["center"], strict=False)
    for number, (level, second), center in policy:
        name = NAMES[number]
        amount = {"rotate": int(np.round((2 * level - 1) * 45)), "posterize": 1 + int(level * 7.999),
                  "solarize": int(level * 255.999)}  # fmt: skip
        amount |= dict.fromkeys(ENHANCE, 0.1 + 1.9 * level)
        amount |= dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y"), (2 * level - 1) * 0.3)
        if name == "rescale":
            pil = rescale(pil, level * 0.25, WAYS[int(second * 5.99)])
        elif name == "cutout":
            pil = cutout(pil, 1 + int(level * shorter * 0.499), *center)
        else:
            pil = operate(pil, name, amount.get(name, level))
    if hidden:
        pil = cutout(pil, 1 + int(shorter * 0.499), *draws["center"][2])
    return from_pillow(pil)


NAMES = (
    "identity", "autocontrast", "equalize", "rotate", "solarize", "color", "contrast", "brightness", "sharpness",
    "shear_x", "shear_y", "translate_x", "translate_y", "posterize", "invert", "blur", "smooth", "rescale", "cutout",
)  # fmt: skip
