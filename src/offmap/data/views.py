"""Two random views of every sample of a batch: what contrastive objectives compare.

Views first draw random numbers, a row for each sample, and then apply them; whoever holds part of a batch can draw
for the whole and apply its own rows. Numbers come from an explicit generator on the CPU, so a seed means the same
views on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from offmap.data import augment
from offmap.errors import InputError

_TRIES = 10  # boxes drawn before a crop falls back on the middle of the picture
_AREA, _ASPECT, _TOP, _LEFT, _FLIP, _JITTER, _AMOUNTS, _ORDER, _GREY, _BLUR, _SIGMA, _NUMBERS = np.cumsum(
    [0, _TRIES, _TRIES, 1, 1, 1, 1, 4, 4, 1, 1, 1]
).tolist()
_AT_ONCE = 512  # pictures worked on at a time: fewer cost more in calls than the processor's cache saves
_JITTERS = (augment.brightness, augment.contrast, augment.saturation, augment.hue)


class Views(Protocol):
    """The interface of what makes two views of a batch."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw random numbers for two views of each sample.

        Parameters
        ----------
        count : int
            Number of samples.
        generator : torch.Generator
            The source.

        Returns
        -------
        Tensor
            Its first axis is the sample.
        """

    def apply(self, batch: Tensor, numbers: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make the two views that the numbers stand for.

        Parameters
        ----------
        batch : Tensor
            The samples.
        numbers : Tensor
            What `draw` gave.
        rows : Tensor of shape (n,) or None, default=None
            Which samples of the data set these are.

        Returns
        -------
        tuple of 2 Tensor
            The views.
        """

    def __call__(self, batch: Tensor, generator: torch.Generator, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw and apply."""


def step_generator(seed: int, step: int, stream: int = 0) -> torch.Generator:
    """Make a generator that depends on the seed and the step alone, so that resumed training sees the same views.

    Parameters
    ----------
    seed, step : int
        Whole numbers from 0 on.
    stream : int, default=0
        Another stream is for random numbers of another kind at the same step.

    Returns
    -------
    torch.Generator
        Seeded.

    Examples
    --------
    >>> draw = lambda *place: torch.rand(3, generator=step_generator(*place))
    >>> torch.equal(draw(0, 7), draw(0, 7)), torch.equal(draw(0, 7), draw(0, 8)), torch.equal(draw(0, 7), draw(7, 0))
    (True, False, False)
    """
    mixed = np.random.SeedSequence([seed, step, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed >> np.uint64(1)))


@dataclass(frozen=True)
class ImageViews:
    """Random crop, mirror, colours and blur, each picture its own; the defaults are SimCLR's as OpenCon uses it.

    Pictures of one channel have no colour: saturation, hue and grey are left out for them.

    Parameters
    ----------
    scale : tuple of 2 float, default=(0.2, 1.0)
        The crop's share of the area, from and to.
    aspect : tuple of 2 float, default=(3 / 4, 4 / 3)
        Its width over its height, from and to.
    flip : float, default=0.5
        The chance that a picture is mirrored.
    jitter : tuple of 4 float, default=(0.4, 0.4, 0.4, 0.1)
        Strengths of brightness, contrast, saturation and hue; the four come in random order.
    jitter_chance : float, default=0.8
        The chance that a picture is jittered at all.
    grey : float, default=0.2
        The chance that it loses its colours.
    blur : float, default=0.0
        The chance that it is blurred.
    sigma : tuple of 2 float, default=(0.1, 2.0)
        The width of the blur in pixels, from and to.
    size : tuple of 2 int or None, default=None
        Height and width of a view; `None` keeps the picture's own.
    mean, std : sequence of float or None, default=None
        What to subtract and divide by in the end, one number a channel; networks trained elsewhere want theirs.

    Examples
    --------
    >>> pictures = torch.rand(8, 3, 32, 32, generator=step_generator(0, 0))
    >>> first, second = ImageViews()(pictures, step_generator(0, 1))
    >>> first.shape, bool((first == second).all())
    (torch.Size([8, 3, 32, 32]), False)
    """

    scale: tuple[float, float] = (0.2, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_chance: float = 0.8
    grey: float = 0.2
    blur: float = 0.0
    sigma: tuple[float, float] = (0.1, 2.0)
    size: tuple[int, int] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1 or not 0 < self.aspect[0] <= self.aspect[1]:
            raise InputError(
                f"ImageViews(scale={self.scale}, aspect={self.aspect}): both rise from above 0, the scale to at most 1"
            )
        for name in ("flip", "jitter_chance", "grey", "blur"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"ImageViews({name}={getattr(self, name)}): a chance is from 0 to 1")
        if min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise InputError(f"ImageViews(jitter={self.jitter}): strengths are at least 0, that of hue at most 0.5")
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise InputError(f"ImageViews(sigma={self.sigma}): the width of a blur rises from above 0")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise InputError(f"ImageViews(std={self.std}): every standard deviation is above 0")

    @classmethod
    def simclr(cls, **settings: Any) -> Self:
        """Return SimCLR's views as OpenCon and ORCA use them (thesis, section 8.4): the defaults."""
        return cls(**settings)

    @classmethod
    def simsiam(cls, width: int = 32, **settings: Any) -> Self:
        """Return SimSiam's views, as NSCL and SORL use them (thesis, appendix B.1.4): above 32 pixels half of the
        views are blurred.

        Parameters
        ----------
        width : int, default=32
            Width of the pictures, in pixels.
        **settings : Any
            Any parameter of the class.

        Examples
        --------
        >>> ImageViews.simsiam(32) == ImageViews.simclr(), ImageViews.simsiam(64).blur
        (True, 0.5)
        """
        return cls(**{"blur": 0.5 if width > 32 else 0.0, **settings})

    def __call__(self, batch: Tensor, generator: torch.Generator, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Two views of a batch; `rows` is not needed here."""
        return self.apply(batch, self.draw(len(batch), generator))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw random numbers for two views of each picture.

        Parameters
        ----------
        count : int
            Number of pictures.
        generator : torch.Generator
            The source.

        Returns
        -------
        Tensor of shape (count, 2, numbers)
            From 0 to 1.
        """
        return torch.rand((count, 2, _NUMBERS), generator=generator)

    def apply(self, batch: Tensor, numbers: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make the two views that the numbers stand for.

        Parameters
        ----------
        batch : Tensor of shape (n, channels, height, width)
            The pictures.
        numbers : Tensor
            What `draw` gave.
        rows : Tensor of shape (n,) or None, default=None
            Not used.

        Returns
        -------
        tuple of 2 Tensor
            The views.
        """
        return self.view(batch, numbers[:, 0]), self.view(batch, numbers[:, 1])

    def plain(self, batch: Tensor) -> Tensor:
        """Return the pictures as they are, scaled and normalised as the views: for evaluation. Not cropped or
        resized.
        """
        return self._normalised(_floats(batch))

    def view(self, batch: Tensor, numbers: Tensor) -> Tensor:
        """Make one view of a batch from one set of numbers.

        Parameters
        ----------
        batch : Tensor of shape (n, channels, height, width)
            The pictures.
        numbers : Tensor of shape (n, numbers)
            From 0 to 1.

        Returns
        -------
        Tensor of shape (n, channels, size, size)
            The view.
        """
        if batch.ndim != 4 or batch.shape[1] not in (1, 3):
            raise InputError(
                f"pictures of shape {tuple(batch.shape)}: samples × 1 or 3 channels × height × width are needed"
            )
        if len(batch) != len(numbers):
            raise InputError(f"{len(numbers)} rows of random numbers for {len(batch)} pictures; draw one for each")
        parts = zip(torch.split(batch, _AT_ONCE), torch.split(numbers, _AT_ONCE), strict=True)
        views = [self._normalised(self._changed(_floats(part), drawn.to(part.device))) for part, drawn in parts]
        return torch.cat(views) if views else _floats(batch)

    def boxes(self, numbers: Tensor, height: int, width: int) -> Tensor:
        """Compute the crops that the numbers stand for, in whole pixels.

        The first of ten drawn boxes that fits; else the largest in the middle with an allowed aspect.

        Parameters
        ----------
        numbers : Tensor of shape (n, numbers)
            From 0 to 1.
        height, width : int
            Height and width of the pictures.

        Returns
        -------
        Tensor of shape (n, 4)
            Top, left, height and width.
        """
        area = height * width * _between(numbers[:, _AREA:_ASPECT], *self.scale)
        aspect = _between(numbers[:, _ASPECT:_TOP], math.log(self.aspect[0]), math.log(self.aspect[1])).exp()
        wide, high = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
        fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
        first = fits.int().argmax(dim=1, keepdim=True)  # of equal values, the first
        none = ~fits.any(dim=1)
        w = wide.gather(1, first)[:, 0].masked_fill(none, min(width, round(height * self.aspect[1])))
        h = high.gather(1, first)[:, 0].masked_fill(none, min(height, round(width / self.aspect[0])))
        top = torch.minimum((numbers[:, _TOP] * (height - h + 1)).floor(), height - h)  # rounding may reach the end
        left = torch.minimum((numbers[:, _LEFT] * (width - w + 1)).floor(), width - w)
        top = torch.where(none, ((height - h) / 2).floor(), top)
        left = torch.where(none, ((width - w) / 2).floor(), left)
        return torch.stack([top, left, h, w], dim=1).long()

    def _changed(self, images: Tensor, numbers: Tensor) -> Tensor:
        height, width = images.shape[2:]
        images = augment.crop(
            images, self.boxes(numbers, height, width), numbers[:, _FLIP] < self.flip, self.size or (height, width)
        )
        images = self._jittered(images, numbers)
        grey = (numbers[:, _GREY] < self.grey).nonzero()[:, 0]
        if images.shape[1] == 3 and len(grey):
            images.index_copy_(0, grey, augment.luminance(images.index_select(0, grey)).expand(-1, 3, -1, -1))
        blurred = (numbers[:, _BLUR] < self.blur).nonzero()[:, 0]
        if len(blurred):
            images[blurred] = augment.blur(images[blurred], _between(numbers[blurred, _SIGMA], *self.sigma))
        return images

    def _jittered(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Four changes in an order of each picture's own: those whose turn it is are changed together."""
        order = numbers[:, _ORDER:_GREY].argsort(dim=1)
        order[numbers[:, _JITTER] >= self.jitter_chance] = -1
        for turn in range(4):
            for which, strength in enumerate(self.jitter[: 4 if images.shape[1] == 3 else 2]):
                rows = (order[:, turn] == which).nonzero()[:, 0]
                if strength == 0 or len(rows) == 0:
                    continue
                middle, lowest = (0.0, -strength) if which == 3 else (1.0, max(0.0, 1 - strength))
                amount = _between(numbers[rows, _AMOUNTS + which], lowest, middle + strength)
                images.index_copy_(0, rows, _JITTERS[which](images.index_select(0, rows), amount))
        return images

    def _normalised(self, images: Tensor) -> Tensor:
        if self.mean is not None:
            images = images - _channels(self.mean, images)
        return images if self.std is None else images / _channels(self.std, images)


def _floats(batch: Tensor) -> Tensor:
    return batch.float().div_(255) if batch.dtype == torch.uint8 else batch.float()


def _between(numbers: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers of [0, 1) stretched to [low, high)."""
    return low + (high - low) * numbers


def _channels(values: Sequence[float], images: Tensor) -> Tensor:
    if len(values) != images.shape[1]:
        raise InputError(f"{len(values)} values of mean or std for {images.shape[1]} channels; give one a channel")
    return torch.tensor(values, dtype=images.dtype, device=images.device)[:, None, None]
