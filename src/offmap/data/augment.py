"""Pictures changed by given amounts, each by its own: crop, colour, grey, blur, as batched tensor operations.

Nothing here is random; `offmap.data.views` draws the amounts. Pictures are N × C × H × W floats in [0, 1].
Definitions follow torchvision's (brightness, contrast and saturation are blends, hue turns in HSV), the reference
of the SimCLR and SimSiam papers' reimplementations; colours are kept in [0, 1] after each step, as there.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, what a colour weighs in grey


def resize_weights(start: Tensor, length: Tensor, given: int, wanted: int) -> Tensor:
    """Return the matrices that cut an interval out of a line of pixels and stretch it: samples × wanted × given.

    Bilinear with a triangle as wide as the pixel that is made, so that shrinking averages instead of skipping
    (what other libraries call antialiasing). Pixels beyond the interval do not take part.

    Parameters
    ----------
    start, length : Tensor
        The interval of each sample, in whole pixels; a negative length reads it backwards, which mirrors the picture.
    given, wanted : int
        Pixels of the line, and of the line that is made.

    Returns
    -------
    Tensor of shape (samples, wanted, given)
        Rows sum to 1.

    Examples
    --------
    >>> resize_weights(torch.tensor([0.0]), torch.tensor([2.0]), given=2, wanted=2)
    tensor([[[1., 0.],
             [0., 1.]]])
    >>> resize_weights(torch.tensor([0.0]), torch.tensor([-4.0]), given=4, wanted=2).mul(7)
    tensor([[[0., 1., 3., 3.],
             [3., 3., 1., 0.]]])
    """
    size = length.abs()[:, None]
    place = (torch.arange(wanted, device=start.device) + 0.5) / wanted
    centre = start[:, None] + size * torch.where(length[:, None] < 0, 1 - place, place)
    pixel = torch.arange(given, device=start.device) + 0.5
    reach = (size / wanted).clamp(min=1.0)[..., None]
    weights = (1 - (pixel - centre[..., None]).abs() / reach).clamp(min=0)
    inside = (pixel > start[:, None]) & (pixel < start[:, None] + size)
    weights = weights * inside[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def crop(images: Tensor, boxes: Tensor, flip: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a box out of each picture, mirror some, stretch all to one size.

    Parameters
    ----------
    images : Tensor
        Samples × channels × height × width.
    boxes : Tensor
        Samples × 4: top, left, height, width, in whole pixels.
    flip : Tensor
        Which pictures to mirror.
    size : tuple of 2 int
        Height and width of what is made.

    Returns
    -------
    Tensor of shape (samples, channels, height, width)
        The crops, of the new size.

    Examples
    --------
    >>> picture = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> crop(picture, torch.tensor([[1, 1, 2, 2]]), torch.tensor([True]), (2, 2))
    tensor([[[[ 6.,  5.],
              [10.,  9.]]]])
    """
    top, left, height, width = boxes.to(images.dtype).unbind(1)
    rows = resize_weights(top, height, images.shape[2], size[0])
    columns = resize_weights(left, torch.where(flip, -width, width), images.shape[3], size[1])
    return _through(rows, images, columns)


def luminance(images: Tensor) -> Tensor:
    """Compute the grey of each pixel; one channel is grey already.

    Parameters
    ----------
    images : Tensor of shape (samples, channels, height, width)
        From 0 to 1.

    Returns
    -------
    Tensor of shape (samples, 1, height, width)
        The grey.

    Examples
    --------
    >>> luminance(torch.ones(1, 3, 1, 1)).item()
    1.0
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])[:, None]


def brightness(images: Tensor, amount: Tensor) -> Tensor:
    """Multiply each picture by its amount.

    Parameters
    ----------
    images : Tensor of shape (samples, channels, height, width)
        From 0 to 1.
    amount : Tensor of shape (samples,)
        The factors.

    Returns
    -------
    Tensor
        The result, of the same shape, from 0 to 1.

    Examples
    --------
    >>> brightness(torch.full((1, 1, 1, 1), 0.5), torch.tensor([1.5])).item()
    0.75
    """
    return (images * _each(amount)).clamp_(0, 1)


def contrast(images: Tensor, amount: Tensor) -> Tensor:
    """Mix each picture with its mean grey: 0 leaves only that, 1 changes nothing.

    Parameters
    ----------
    images : Tensor of shape (samples, channels, height, width)
        From 0 to 1.
    amount : Tensor of shape (samples,)
        The shares of the picture.

    Returns
    -------
    Tensor
        The result, of the same shape, from 0 to 1.

    Examples
    --------
    >>> contrast(torch.tensor([0.25, 0.75]).reshape(1, 1, 1, 2), torch.tensor([0.5])).flatten()
    tensor([0.3750, 0.6250])
    """
    mean = luminance(images).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, _each(amount)).clamp_(0, 1)


def saturation(images: Tensor, amount: Tensor) -> Tensor:
    """Mix each pixel with its own grey: 0 leaves only that, 1 changes nothing.

    Parameters
    ----------
    images : Tensor of shape (samples, channels, height, width)
        From 0 to 1.
    amount : Tensor of shape (samples,)
        The shares of the picture.

    Returns
    -------
    Tensor
        The result, of the same shape, from 0 to 1.

    Examples
    --------
    >>> saturation(torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1), torch.tensor([0.5])).flatten()
    tensor([0.6495, 0.1495, 0.1495])
    """
    return torch.lerp(luminance(images), images, _each(amount)).clamp_(0, 1)


def hue(images: Tensor, amount: Tensor) -> Tensor:
    """Turn each pixel's hue by a share of the full circle; value and chroma stay.

    With V the largest channel, C the chroma and H the hue in sixths of the circle, red is
    ``V − C·clip(2 − |H − 3|, 0, 1)``, green ``V − C·clip(|H − 2| − 1, 0, 1)`` and blue the same around 4: the HSV
    hexcone without its table of sectors.

    Parameters
    ----------
    images : Tensor of shape (samples, 3, height, width)
        From 0 to 1.
    amount : Tensor of shape (samples,)
        Shares of the circle.

    Returns
    -------
    Tensor
        The result, of the same shape.

    Examples
    --------
    >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    >>> hue(red, torch.tensor([1 / 3])).flatten().round(decimals=4)
    tensor([0., 1., 0.])
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    per_chroma = 1 / chroma.clamp(min=1e-12)  # a grey pixel has no hue; any will do, as its chroma is 0
    sixths = torch.where(
        value == red,
        (green - blue) * per_chroma,
        torch.where(value == green, (blue - red) * per_chroma + 2, (red - green) * per_chroma + 4),
    )
    sixths = sixths.add_(6 * amount[:, None, None]).remainder_(6)
    below = torch.empty_like(images)
    torch.sub(2, (sixths - 3).abs_(), out=below[:, 0])
    torch.sub((sixths - 2).abs_(), 1, out=below[:, 1])
    torch.sub((sixths - 4).abs_(), 1, out=below[:, 2])
    return value[:, None] - below.clamp_(0, 1).mul_(chroma[:, None])


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur each picture by a Gaussian of its own width; at the border, only pixels that are there take part.

    Parameters
    ----------
    images : Tensor of shape (samples, channels, height, width)
        From 0 to 1.
    sigma : Tensor of shape (samples,)
        Standard deviations in pixels.

    Returns
    -------
    Tensor
        The result, of the same shape.

    Examples
    --------
    >>> blur(torch.eye(3).reshape(1, 1, 3, 3), torch.tensor([0.01])).round(decimals=4)[0, 0]
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    return _through(_gaussian(sigma, images.shape[2]), images, _gaussian(sigma, images.shape[3]))


def _through(rows: Tensor, images: Tensor, columns: Tensor) -> Tensor:
    """``rows · image · columnsᵀ`` for every channel, all rows of a picture as one product."""
    across = images.flatten(1, 2) @ columns.transpose(1, 2)
    return rows[:, None] @ across.reshape(*images.shape[:3], columns.shape[1])


def _gaussian(sigma: Tensor, length: int) -> Tensor:
    place = torch.arange(length, device=sigma.device)
    squares = (place - place[:, None]).square().to(sigma.dtype)
    weights = torch.exp(-squares / (2 * sigma.square())[:, None, None])
    return weights / weights.sum(dim=2, keepdim=True)


def _each(amount: Tensor) -> Tensor:
    return amount[:, None, None, None]
