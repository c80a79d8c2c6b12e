"""Networks for images, as torch modules. `scenarios` imports this file when one of them is asked for: it needs torch.

An image comes as a row of pixels from 0 to 1: s * s of them if it is grey, 3 * s * s if it has colours, channel by channel.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import torch
from torch import nn

from fedhold.errors import integer, require


class Image(NamedTuple):
    """The shape of an image."""

    channels: int
    height: int
    width: int


def image_of(pixels: int, name: str, *, least: int) -> Image:
    """The shape of square images with so many pixels, grey or in three colours; an error where they are no such images.

    pixels  numbers in a row
    name    of the network, for errors
    least   how many pixels high and wide an image must be

    >>> image_of(3072, "cnn", least=4)
    Image(channels=3, height=32, width=32)
    """
    channels = 1 if isqrt(pixels) ** 2 == pixels else 3
    side = isqrt(pixels // channels)
    fits = channels * side**2 == pixels and side >= least
    needs = f"square images of at least {least} x {least} pixels, grey or in three colours"
    require(fits, name, needs=needs, remedy="Use mnist, fashion_mnist, cifar10 or femnist.", numbers=pixels)
    return Image(channels, side, side)


def convolutional(image: Image, classes: int, width: int, hidden: int) -> nn.Module:
    """Two convolutions of 5 x 5, each with ReLU and pooling, a hidden layer, and one output per class.

    image    the shape of the inputs
    classes  the number of outputs
    width    channels of the first convolution; the second has twice as many
    hidden   the number of hidden units
    """
    width, hidden = integer(width, "width", at_least=1), integer(hidden, "hidden", at_least=1)
    return nn.Sequential(
        nn.Unflatten(1, image),
        nn.Conv2d(image.channels, width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (image.height // 4) * (image.width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def residual(image: Image, classes: int, width: int, groups: int) -> nn.Module:
    """ResNet-18 for small images: a convolution, four stages of two blocks, the mean over the image, one output per class.

    image    the shape of the inputs
    classes  the number of outputs
    width    channels of the first stage; every further one doubles them, and halves the image
    groups   of channels that are normalised together
    """
    width, groups = integer(width, "width", at_least=1), integer(groups, "groups", at_least=1)
    remedy = "Usual are width=64 and groups=2."
    require(width % groups == 0, "resnet18", needs="groups to divide width", remedy=remedy, width=width, groups=groups)
    first = nn.Sequential(*_normalised(image.channels, width, groups, 3, stride=1), nn.ReLU())
    blocks, before = [], width
    for stage in range(4):
        channels = width * 2**stage
        blocks += [Block(before, channels, groups, stride=1 if stage == 0 else 2), Block(channels, channels, groups)]
        before = channels
    return nn.Sequential(
        nn.Unflatten(1, image), first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)
    )


class Block(nn.Module):
    """relu(two convolutions of x + x); where the shape changes, x goes through a convolution of 1 x 1."""

    def __init__(self, before: int, channels: int, groups: int, stride: int = 1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_normalised(before, channels, groups, 3, stride),
            nn.ReLU(),
            *_normalised(channels, channels, groups, 3, stride=1),
        )
        same = before == channels and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normalised(before, channels, groups, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def _normalised(before: int, channels: int, groups: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """A convolution of size x size, and the normalisation of its result; that has an offset, so the convolution has none."""
    convolution = nn.Conv2d(before, channels, size, stride, padding=size // 2, bias=False)
    return convolution, nn.GroupNorm(groups, channels)
