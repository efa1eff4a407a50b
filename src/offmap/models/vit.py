"""A plain vision transformer."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from offmap.errors import InputError


class ViT(nn.Module):
    """Patches as tokens, a class token in front, blocks of attention and two-layer networks, one linear layer.

    Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021. Parameters are named as torchvision names them
    (``class_token``, ``conv_proj``, ``encoder.layers.encoder_layer_0.self_attention``, ``heads.head``);
    `offmap.models.weights.load_weights` also takes the names of timm and DINO. The defaults are small, for pictures
    of 32 pixels; ViT-B/16 is ``ViT(1000, size=224, patch=16, width=768, depth=12, n_heads=12)``.

    Parameters
    ----------
    n_classes : int, default=10
        Outputs.
    size : int, default=32
        Height and width of the pictures.
    patch : int, default=4
        Height and width of a patch; the size is a multiple of it.
    width : int, default=192
        Numbers in a token: the features.
    depth : int, default=6
        Blocks.
    n_heads : int, default=3
        Heads of attention; the width is a multiple of it.
    channels : int, default=3
        Channels of the input.
    dropout : float, default=0.0
        In the blocks.
    seed : int, default=0
        Seed of the initial weights; torch's own random state is left alone.

    Examples
    --------
    >>> model = ViT(10, width=24, depth=2, n_heads=3)
    >>> model(torch.zeros(2, 3, 32, 32)).shape, model.features(torch.zeros(2, 3, 32, 32)).shape
    (torch.Size([2, 10]), torch.Size([2, 24]))
    """

    def __init__(
        self,
        n_classes: int = 10,
        size: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        n_heads: int = 3,
        channels: int = 3,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(n_classes, size, patch, width, depth, n_heads, channels) < 1 or size % patch or width % n_heads:
            raise InputError(
                f"ViT({n_classes}, {size=}, {patch=}, {width=}, {depth=}, {n_heads=}): all at least 1, the size a "
                "multiple of the patch, the width of the heads"
            )
        self.size = size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.class_token = nn.Parameter(torch.zeros(1, 1, width))
            self.conv_proj = nn.Conv2d(channels, width, patch, stride=patch)
            self.encoder = _Encoder((size // patch) ** 2 + 1, width, depth, n_heads, dropout)
            self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, n_classes)))

    def features(self, x: Tensor) -> Tensor:
        """Compute what goes into the linear layer: the class token after the last block."""
        if x.shape[2:] != (self.size, self.size):
            raise InputError(
                f"pictures of {x.shape[2]}×{x.shape[3]} pixels for a ViT of {self.size}×{self.size}: "
                "resize them, or make the network for their size"
            )
        tokens = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], dim=1)
        encoded: Tensor = self.encoder(tokens)
        return encoded[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch of pictures."""
        logits: Tensor = self.heads(self.features(x))
        return logits


class _Encoder(nn.Module):
    """Places added, then blocks, then a normalisation."""

    def __init__(self, tokens: int, width: int, depth: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        blocks: OrderedDict[str, nn.Module] = OrderedDict(
            (f"encoder_layer_{i}", _Layer(width, n_heads, dropout)) for i in range(depth)
        )
        self.layers = nn.Sequential(blocks)
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.ln(self.layers(tokens + self.pos_embedding))
        return out


class _Layer(nn.Module):
    """Attention, then a two-layer network; each normalises first and is added to what it was given."""

    def __init__(self, width: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, n_heads, dropout=dropout, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.ln_1(tokens)
        tokens = tokens + self.self_attention(x, x, x, need_weights=False)[0]
        out: Tensor = tokens + self.mlp(self.ln_2(tokens))
        return out
