from __future__ import annotations

import pytest
import torch

from offmap.data.token_views import TokenViews
from offmap.data.views import step_generator
from offmap.errors import InputError


def texts(rows: int, columns: int) -> torch.Tensor:
    """Token numbers of texts of 2 to all columns."""
    ids = torch.arange(1, columns + 1).repeat(rows, 1)
    ids[torch.arange(columns)[None, :] >= 2 + torch.arange(rows)[:, None] % (columns - 1)] = 0
    return ids


def test_a_view_only_drops_tokens_and_keeps_the_first() -> None:
    ids = texts(200, 20)
    for view in TokenViews(20, dropout=0.4, span=0.4)(ids, step_generator(0, 0)):
        assert bool(((view == ids) | (view == 0)).all())
        assert torch.equal(view[:, 0], ids[:, 0])


def test_a_span_is_one_piece_of_its_share() -> None:
    ids = texts(300, 20)
    one, two = TokenViews(20, dropout=0.0, span=0.3)(ids, step_generator(1, 0))
    starts = set()
    for before, after in zip(ids, one, strict=True):
        length = int((before != 0).sum()) - 1
        gone = ((before != 0) & (after == 0)).nonzero().flatten()
        assert len(gone) == round(0.3 * length)
        if len(gone):
            assert int(gone[-1] - gone[0]) == len(gone) - 1
            starts.add(int(gone[0]))
    assert len(starts) > 8  # anywhere in the text
    assert not torch.equal(one, two)


def test_states_lose_the_tokens_that_numbers_lose() -> None:
    ids = texts(50, 12)
    views = TokenViews(12)
    numbers = views.draw(50, step_generator(0, 3))
    states = ids[:, :, None] * torch.tensor([1.0, -2.0, 0.0])
    for plain, wide in zip(views.apply(ids, numbers), views.apply(states, numbers), strict=True):
        assert torch.equal(plain != 0, (wide != 0).any(dim=2))
        assert torch.equal(wide[:, :, 0], plain.float())


def test_tokens_are_dropped_as_often_as_asked() -> None:
    ids = torch.ones(2000, 11, dtype=torch.long)
    one, two = TokenViews(11, dropout=0.25, span=0.0)(ids, step_generator(0, 0))
    for view in (one, two):
        assert abs(float((view[:, 1:] == 0).float().mean()) - 0.25) < 0.01


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="shares from 0 to below 1"):
        TokenViews(5, dropout=1.0)
    with pytest.raises(InputError, match="texts × 5 tokens"):
        TokenViews(5)(torch.ones(2, 6), step_generator(0, 0))
