"""A sentence encoder of the BERT family: token embeddings, attention blocks, the mean over tokens, length 1.

Only tokens that are there are worked on: linear layers see the tokens of a batch as one list, attention those of texts
of one length at a time, and nothing is padded. A token that is 0 (an all-zero state) is absent, at the end or in the
middle, so dropping tokens costs nothing and `offmap.data.token_views.TokenViews` needs no mask beside the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.errors import InputError
from offmap.models.tokenizer import Tokenizer

ROWS = 256  # texts worked on at once where no gradient is needed


class Lengths(NamedTuple):
    """The texts of a batch by their lengths, shortest first: how many tokens the texts of one length have together."""

    order: Tensor  # places of the batch's tokens, text after text
    tokens: list[int]
    lengths: list[int]

    @classmethod
    def of(cls, present: Tensor) -> Lengths:
        """Return the lengths of texts whose tokens are there or not; attention does not depend on their places."""
        counts = present.sum(dim=1)
        if len(counts) and not bool(counts.min()):
            raise InputError("a text has no token left; every row needs at least one that is not 0")
        order = torch.argsort(counts.repeat_interleave(counts), stable=True)
        lengths, rows = torch.unique(counts, return_counts=True)
        return cls(order, (lengths * rows).tolist(), lengths.tolist())


class Block(nn.Module):
    """Attention, then a two-layer network; each is added to what it was given and normalised afterwards."""

    def __init__(self, width: int, n_heads: int, hidden: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, tokens: Tensor, lengths: Lengths) -> Tensor:
        """Return the tokens after this block."""
        parts = (layer(tokens).split(lengths.tokens) for layer in (self.query, self.key, self.value))
        seen = torch.cat([self._attend(*part) for part in zip(*parts, lengths.lengths, strict=True)])
        tokens = self.norm_1(tokens + self.out(seen))
        out: Tensor = self.norm_2(tokens + self.down(functional.gelu(self.up(tokens))))
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, length: int) -> Tensor:
        """Attend within texts of one length."""
        shape = (-1, length, self.n_heads, query.shape[1] // self.n_heads)
        heads = [x.view(shape).transpose(1, 2) for x in (query, key, value)]
        seen: Tensor = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return seen.transpose(1, 2).reshape(query.shape)


class TokenStates(nn.Module):
    """Tokens' embeddings and the first blocks: token numbers in, states out, rows × tokens × width."""

    def __init__(self, vocabulary: int, positions: int, width: int, blocks: list[Block]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.kinds = nn.Embedding(2, width)  # of a pair of texts, the first: there is never a second here
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the states, zero where a token is absent; numbers may be stored as floats."""
        if ids.ndim != 2 or ids.shape[1] > self.places.num_embeddings:
            raise InputError(
                f"tokens of shape {tuple(ids.shape)}: rows of at most {self.places.num_embeddings} numbers are needed; "
                "see BertEncoder.tokenize"
            )
        ids = ids.long()
        if torch.is_grad_enabled() or len(ids) <= ROWS:
            return self._compute(ids)
        return torch.cat([self._compute(part) for part in torch.split(ids, ROWS)])

    def _compute(self, ids: Tensor) -> Tensor:
        present = ids != 0
        row, place = present.nonzero(as_tuple=True)
        tokens = self.norm(self.words(ids[present]) + self.places(place) + self.kinds.weight[0])
        tokens = run_blocks(self.blocks, tokens, present)
        states = tokens.new_zeros(*ids.shape, tokens.shape[1])
        return states.index_put((row, place), tokens)


class SentencePool(nn.Module):
    """The last blocks, the mean over tokens and length 1: states in, one row per text out."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, states: Tensor) -> Tensor:
        """Return one row of length 1 per text."""
        if torch.is_grad_enabled() or len(states) <= ROWS:
            return self._compute(states)
        return torch.cat([self._compute(part) for part in torch.split(states, ROWS)])

    def _compute(self, states: Tensor) -> Tensor:
        present = (states != 0).any(dim=2)
        tokens = run_blocks(self.blocks, states[present].float(), present)
        row, _ = present.nonzero(as_tuple=True)
        means = tokens.new_zeros(len(states), tokens.shape[1]).index_add(0, row, tokens)
        return functional.normalize(means, dim=1)  # a sum has the direction of the mean


def run_blocks(blocks: nn.ModuleList, tokens: Tensor, present: Tensor) -> Tensor:
    """Pass the tokens that are there, as one list, through blocks."""
    if not len(blocks):
        return tokens
    lengths = Lengths.of(present)
    tokens = tokens.index_select(0, lengths.order)
    for block in blocks:
        tokens = block(tokens, lengths)
    return torch.empty_like(tokens).index_copy(0, lengths.order, tokens)


class BertEncoder(nn.Module):
    """Texts as token numbers in, rows of length 1 out; the shape of all-MiniLM-L6-v2 by default.

    Devlin et al., BERT, NAACL 2019; Reimers and Gurevych, Sentence-BERT, EMNLP 2019. `load_bert` reads weights.

    Parameters
    ----------
    vocabulary : int, default 30522
        Different tokens; token 0 is padding.
    width : int, default 384
        Numbers in a token's state, and in a text's row.
    depth : int, default 6
        Blocks.
    n_heads : int, default 12
        Heads of attention; the width is a multiple of it.
    hidden : int, default 1536
        Width inside a block's two-layer network.
    positions : int, default 512
        Tokens in the longest text.
    trained : int, optional
        How many of the last blocks `offmap.learn` trains; what comes before them is computed once and kept. The whole
        network is trained when `None`.
    tokenizer : Tokenizer, optional
        What turns texts into the token numbers that the weights are for.

    Examples
    --------
    >>> encoder = BertEncoder(100, width=12, depth=2, n_heads=3, hidden=24)
    >>> rows = encoder(torch.tensor([[5, 7, 9], [5, 7, 0]]))
    >>> rows.shape, bool(torch.allclose(rows.norm(dim=1), torch.ones(2)))
    (torch.Size([2, 12]), True)
    """

    front: TokenStates | nn.Identity
    body: nn.Module

    def __init__(
        self,
        vocabulary: int = 30522,
        width: int = 384,
        depth: int = 6,
        n_heads: int = 12,
        hidden: int = 1536,
        positions: int = 512,
        trained: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__()
        if min(vocabulary, width, depth, n_heads, hidden, positions) < 1 or width % n_heads:
            raise InputError(
                f"BertEncoder({vocabulary=}, {width=}, {depth=}, {n_heads=}, {hidden=}, {positions=}): all at least 1, "
                "the width a multiple of the heads"
            )
        if trained is not None and not 1 <= trained <= depth:
            raise InputError(f"BertEncoder(trained={trained}): from 1 to {depth} blocks, or None for the whole network")
        self.width, self.trained, self.tokenizer = width, trained, tokenizer
        self.shape = {
            "vocabulary": vocabulary,
            "width": width,
            "depth": depth,
            "n_heads": n_heads,
            "hidden": hidden,
            "positions": positions,
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            blocks = [Block(width, n_heads, hidden) for _ in range(depth)]
            first = depth if trained is None else depth - trained
            states = TokenStates(vocabulary, positions, width, blocks[:first])
        pool = SentencePool(blocks[first:])
        self.front, self.body = (nn.Identity(), nn.Sequential(states, pool)) if trained is None else (states, pool)

    def forward(self, ids: Tensor) -> Tensor:
        """Return one row of length 1 per text; token 0 is absent."""
        rows: Tensor = self.body(self.front(ids))
        return rows

    def tokenize(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the token numbers of texts, texts × tokens of the longest one, 0 where a text has ended."""
        if self.tokenizer is None:
            raise InputError("this BertEncoder has no tokenizer; load_bert reads one with the weights")
        ids = self.tokenizer(texts)
        if ids.size and ids.max() >= self.shape["vocabulary"]:
            raise InputError(
                f"the tokenizer gives token {ids.max()}, the encoder has {self.shape['vocabulary']}; it belongs to "
                "another encoder"
            )
        return ids
