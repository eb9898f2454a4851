#!/usr/bin/env python3
"""Writes torchvision_golden.txt, which augment_golden_test.cc reads: what torchvision makes of two small images.

Needed only to add or change cases:
    python3 -m venv /tmp/vision && /tmp/vision/bin/pip install torch torchvision
    /tmp/vision/bin/python tests/io/torchvision_golden.py

A line is `function input count numbers... height width channels values`: the numbers are the function's arguments, and
the values are bytes in hexadecimal, or decimal numbers with commas between them for `normalize`. The function `input`
names an image. The functions are torchvision's, of transforms.v2.functional, with images of type uint8.
"""

import pathlib
import random

import torch
import torchvision
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

BILINEAR, NEAREST = InterpolationMode.BILINEAR, InterpolationMode.NEAREST


def picture(height, width, channels):
    """Noise upon a slope, so that neighbours differ, and black, white and grey pixels.

    Both sides are odd: turned by 90 degrees, the middles of pixels then fall on middles of pixels.
    """
    draw = random.Random(f"{height} {width} {channels}")
    image = torch.empty(channels, height, width, dtype=torch.uint8)
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                image[c, y, x] = min(255, max(0, 9 * y + 5 * x + 20 * c + draw.randrange(-60, 90)))
    image[:, 0, 0], image[:, 0, 1], image[:, 0, 2] = 0, 255, 77
    return image


INPUTS = {"colour": picture(13, 17, 3), "grey": picture(9, 7, 1)}


def cases():
    """Function, arguments, and what makes the result of an image."""
    for size in ((7, 9), (20, 31), (13, 5), (29, 17), (2, 3)):
        yield "resize", size, lambda i, s=size: F.resize(i, list(s), BILINEAR, antialias=True)
    for short in (5, 24):
        yield "resize_short", (short,), lambda i, s=short: F.resize(i, [s], BILINEAR, antialias=True)
    for crop in ((2, 3, 5, 4), (-2, -3, 9, 8), (6, 5, 8, 4)):
        yield "crop", crop, lambda i, c=crop: F.crop(i, *c)
    for size in ((5, 4), (6, 7), (8, 3), (21, 20), (9, 30)):
        yield "center_crop", size, lambda i, s=size: F.center_crop(i, list(s))
    yield (
        "resized_crop",
        (1, 2, 8, 5, 6, 11),
        lambda i: F.resized_crop(i, 1, 2, 8, 5, [6, 11], BILINEAR, antialias=True),
    )
    yield "pad", (3, 9), lambda i: F.pad(i, [3], fill=9)
    yield "flip", (), F.horizontal_flip
    yield "flip_vertical", (), F.vertical_flip
    for factor in (0.0, 0.4, 1.0, 1.7, 30.0):
        yield "brightness", (factor,), lambda i, f=factor: F.adjust_brightness(i, f)
        yield "contrast", (factor,), lambda i, f=factor: F.adjust_contrast(i, f)
        yield "saturation", (factor,), lambda i, f=factor: F.adjust_saturation(i, f)
    for shift in (-0.5, -0.2, 0, 0.05, 0.31, 0.5):
        yield "hue", (shift,), lambda i, s=shift: F.adjust_hue(i, s)
    yield "grayscale", (), lambda i: F.rgb_to_grayscale(i, i.shape[0])
    for degrees in (-170, -31, 0, 10, 45, 90, 133):
        yield "rotate", (degrees,), lambda i, d=degrees: F.rotate(i, d, BILINEAR)
        yield "rotate_nearest", (degrees, 50), lambda i, d=degrees: F.rotate(i, d, NEAREST, fill=50)
    for a in (
        (0, 2, -1, 1, 0, 0),
        (20, 0, 0, 1.3, 0, 0),
        (-15, 1, 3, 0.8, 12, -7),
        (0, 0, 0, 1, 30, 0),
        (0, 0, 0, 1, 0, 25),
    ):
        yield "affine", a, lambda i, a=a: F.affine(i, a[0], [a[1], a[2]], a[3], [a[4], a[5]], BILINEAR)
        yield (
            "affine_nearest",
            (*a, 50),
            lambda i, a=a: F.affine(i, a[0], [a[1], a[2]], a[3], [a[4], a[5]], NEAREST, fill=50),
        )
    yield "erase", (2, 1, 4, 5, 33), lambda i: F.erase(i, 2, 1, 4, 5, torch.full((1, 1, 1), 33, dtype=torch.uint8))
    yield (
        "normalize",
        (0.485, 0.229),
        lambda i: F.normalize(F.to_dtype(i, torch.float32, scale=True), [0.485] * i.shape[0], [0.229] * i.shape[0]),
    )


def line(function, name, arguments, image):
    channels, height, width = image.shape
    values = image.permute(1, 2, 0).reshape(-1)
    text = bytes(values.tolist()).hex() if image.dtype == torch.uint8 else ",".join(f"{v:.9g}" for v in values.tolist())
    return " ".join(map(str, (function, name, len(arguments), *arguments, height, width, channels, text))) + "\n"


def main():
    lines = [f"# torchvision {torchvision.__version__.split('+')[0]}\n"]
    for name, image in INPUTS.items():
        lines.append(line("input", name, (), image))
        for function, arguments, call in cases():
            lines.append(line(function, name, arguments, call(image)))
    path = pathlib.Path(__file__).with_name("torchvision_golden.txt")
    path.write_text("".join(lines))
    print(f"{path.name}: {len(lines)} lines, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
