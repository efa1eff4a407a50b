"""The mathematics of the extra passes: what is kept of a layer, how it is edited, how an input is moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offmap.errors import InputError
from offmap.extra_passes import Clamp, Edit, Layer

SKETCH = 512
_GRAM_BYTES = 32 * 2**20


def reduce_output(output: torch.Tensor, request: Layer) -> torch.Tensor:
    """Reduce a layer's output to what `request` keeps, one row per input.

    Parameters
    ----------
    output : Tensor
        Output of a layer, one entry per input.
    request : Layer
        Which reduction.

    Returns
    -------
    Tensor
        One row per input.
    """
    if request.reduce == "mean":
        return pool_positions(output)
    if request.reduce == "flat":
        return output.flatten(1)
    if request.reduce == "sketch":
        return order_statistics(output)
    return gram_row_sums(output, request.powers)


def pool_positions(output: torch.Tensor) -> torch.Tensor:
    """Pool to one vector per input: the mean over H × W of a feature map, over the tokens of a sequence.

    Parameters
    ----------
    output : Tensor of shape (n, c, h, w), (n, tokens, width) or (n, width)
        Output of a layer.

    Returns
    -------
    Tensor of shape (n, channels)
        The means.

    Examples
    --------
    >>> pool_positions(torch.arange(8.0).reshape(1, 2, 2, 2))
    tensor([[1.5000, 5.5000]])
    """
    if output.ndim == 3:
        return output.mean(1)
    if output.ndim > 3:
        return output.flatten(2).mean(2)
    return output.flatten(1)


def order_statistics(output: torch.Tensor, count: int = SKETCH) -> torch.Tensor:
    """Compute equally spaced order statistics of all values of each input, smallest and largest included.

    They give every percentile of an inner layer to within 1/(count − 1) of rank, in constant space.

    Parameters
    ----------
    output : Tensor
        Output of a layer.
    count : int, optional
        How many.

    Returns
    -------
    Tensor of shape (n, count)
        In order.

    Examples
    --------
    >>> order_statistics(torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0]]), count=3)
    tensor([[1., 3., 5.]])
    """
    values = output.flatten(1).sort(1).values
    size = values.shape[1]
    if size <= count:
        return values
    steps = torch.arange(count, dtype=torch.float64) * ((size - 1) / (count - 1))
    return values[:, steps.round().long().to(values.device)]


def gram_row_sums(output: torch.Tensor, powers: int) -> torch.Tensor:
    """Compute row sums of G_p = (F^p F^pᵀ)^(1/p) with signed roots, p = 1 … powers (Sastry & Oore 2020, eq. 1).

    F holds one row per channel. Each row is first divided by its largest magnitude m, which G_p gives back as
    m_i m_j, so that high powers neither overflow nor vanish.

    Parameters
    ----------
    output : Tensor
        Output of a layer.
    powers : int
        The highest power.

    Returns
    -------
    torch.Tensor
        Inputs × powers × channels.

    Examples
    --------
    >>> gram_row_sums(torch.tensor([[[[1.0, 2.0]], [[0.0, 1.0]]]]), powers=1)
    tensor([[[7., 3.]]])
    """
    maps = channel_rows(output)
    chunk = max(1, _GRAM_BYTES // (4 * maps.shape[1] ** 2))
    return torch.cat([_gram_block(block, powers) for block in torch.split(maps, chunk)])


def _gram_block(maps: torch.Tensor, powers: int) -> torch.Tensor:
    largest = maps.abs().amax(2, keepdim=True)
    unit = maps / torch.where(largest > 0, largest, 1.0)
    sums = []
    for p in range(1, powers + 1):
        raised = unit**p
        gram = raised @ raised.transpose(1, 2)
        root = gram.sign() * gram.abs() ** (1 / p)
        sums.append(largest[:, :, 0] * (root @ largest)[:, :, 0])
    return torch.stack(sums, 1)


def apply_edit(output: torch.Tensor, edit: Edit) -> torch.Tensor:
    """Edit a layer's output.

    Parameters
    ----------
    output : Tensor
        Output of a layer.
    edit : Edit
        What to change.

    Returns
    -------
    Tensor
        The result, of the same shape.
    """
    if isinstance(edit, Clamp):
        return output.clamp(max=edit.c)
    return remove_rank1(output)


def remove_rank1(output: torch.Tensor) -> torch.Tensor:
    """Subtract the leading singular component s₁u₁v₁ᵀ of each C × HW map (RankFeat, Song et al. 2022, eq. 3).

    The leading vector comes from the eigenvectors of the smaller Gram matrix in float64: exact, with no
    iteration to tune.

    Parameters
    ----------
    output : Tensor
        Output of a layer.

    Returns
    -------
    Tensor
        The result, of the same shape.

    Examples
    --------
    >>> maps = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).reshape(1, 2, 2, 1)
    >>> remove_rank1(maps).reshape(2, 2) + 0.0
    tensor([[0., 0.],
            [0., 1.]])
    """
    if output.ndim < 3:
        raise InputError(
            f"rank1: the layer gives {tuple(output.shape[1:])} numbers per input, but only a feature map "
            "(channels × positions) has singular components; choose an earlier layer"
        )
    maps = output.flatten(2).double()
    rows, columns = maps.shape[1:]
    tall = rows >= columns
    gram = maps.transpose(1, 2) @ maps if tall else maps @ maps.transpose(1, 2)
    leading = torch.linalg.eigh(gram).eigenvectors[:, :, -1:]
    projector = leading @ leading.transpose(1, 2)
    leading_part = maps @ projector if tall else projector @ maps
    rest: torch.Tensor = (maps - leading_part).to(output.dtype)
    return rest.reshape(output.shape)


def signed_step(
    inputs: torch.Tensor,
    gradient: torch.Tensor,
    epsilon: float,
    sign_zero: int = 1,
    scale: Sequence[float] | None = None,
    share: float = 1.0,
) -> torch.Tensor:
    """Move inputs: x − ε·sign(−∇ objective), over each channel's deviation if given (Liang et al. 2018).

    Parameters
    ----------
    inputs : Tensor
        x.
    gradient : Tensor
        ∇ of the objective.
    epsilon : float
        ε.
    sign_zero : int, default=1
        The sign of a gradient of 0.
    scale : sequence of float or None, default=None
        Deviation of each channel.
    share : float, default=1.0
        The share of entries that moves, those of the smallest gradient.

    Returns
    -------
    Tensor
        The result, of the same shape.

    Examples
    --------
    >>> signed_step(torch.zeros(1, 3), torch.tensor([[2.0, -1.0, 0.0]]), 0.5)
    tensor([[ 0.5000, -0.5000, -0.5000]])
    >>> signed_step(torch.zeros(1, 3), torch.tensor([[2.0, -1.0, 3.0]]), 0.5, share=0.4)
    tensor([[ 0.0000, -0.5000,  0.0000]])
    """
    descended = -gradient
    direction = descended.sign()
    if sign_zero:
        direction = torch.where(descended >= 0, 1.0, -1.0).to(inputs.dtype)
    if scale is not None:
        if inputs.ndim < 2 or len(scale) not in (1, inputs.shape[1]):
            raise InputError(
                f"scale={tuple(scale)}: one standard deviation per channel is needed, "
                f"but the inputs have the shape {tuple(inputs.shape[1:])}"
            )
        stds = torch.tensor(scale, dtype=inputs.dtype, device=inputs.device)
        direction = direction / stds.reshape(1, -1, *[1] * (inputs.ndim - 2))
    if share < 1:
        direction = direction * smallest_entries(gradient.abs(), share)
    return inputs - epsilon * direction


def smallest_entries(values: torch.Tensor, share: float) -> torch.Tensor:
    """Mark the smallest entries of each row with 1, at least one, and the others with 0.

    Parameters
    ----------
    values : Tensor
        One entry per input.
    share : float
        The share of entries to mark.

    Returns
    -------
    Tensor
        The result, of the same shape.

    Examples
    --------
    >>> smallest_entries(torch.tensor([[3.0, 1.0, 2.0]]), 0.7)
    tensor([[0., 1., 1.]])
    """
    flat = values.flatten(1)
    places = flat.topk(max(1, int(flat.shape[1] * share)), dim=1, largest=False).indices
    return torch.zeros_like(flat).scatter_(1, places, 1.0).reshape(values.shape)


def channel_rows(output: torch.Tensor) -> torch.Tensor:
    """Arrange as channels × positions: C × HW of a feature map, width × tokens of a sequence, C × 1 of a vector.

    Parameters
    ----------
    output : Tensor
        Output of a layer.

    Returns
    -------
    Tensor of shape (n, channels, positions)
        A view where possible.
    """
    if output.ndim == 3:
        return output.transpose(1, 2)
    return output.reshape(*output.shape[:2], -1)
