"""Training a classifier the plain way: cross-entropy, Adam, one learning rate that falls to zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from offmap.errors import InputError


def train_classifier(
    model: nn.Module,
    inputs: Any,
    labels: Any,
    *,
    epochs: int = 20,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    weight_decay: float = 1e-4,
    seed: int = 0,
    on_epoch: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """Train a model in place and leave it in evaluation mode. The same seed gives the same weights.

    Parameters
    ----------
    model : nn.Module
        Any module from inputs to logits.
    inputs, labels : array-like
        Arrays or tensors: one row and one class index per sample.
    epochs, batch_size, learning_rate, weight_decay : int, default=20 and 64 and 0.003 and 0.0001
        As usual; the learning rate follows a cosine down to zero.
    seed : int, default=0
        Seed of the order of samples, and of dropout, if any.
    on_epoch : callable or None, default=None
        Called after each epoch with its number, from 1, and the mean loss.

    Returns
    -------
    nn.Module
        The same model.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(int)
    >>> model = train_classifier(nn.Linear(2, 2), x, y, epochs=20, learning_rate=0.1)
    >>> float((model(torch.from_numpy(x)).argmax(1).numpy() == y).mean()) > 0.95
    True
    """
    x = torch.as_tensor(inputs, dtype=torch.float32)
    y = torch.as_tensor(np.asarray(labels), dtype=torch.long)
    if len(x) != len(y) or len(x) == 0:
        raise InputError(f"train_classifier: {len(x)} inputs and {len(y)} labels; one label for each, at least one")
    steps = -(-len(x) // batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    loss_of = nn.CrossEntropyLoss()
    order = np.random.default_rng(seed)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for epoch in range(1, epochs + 1):
            total = 0.0
            for rows in np.array_split(order.permutation(len(x)), steps):
                loss = loss_of(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += float(loss.detach()) * len(rows)
            if on_epoch is not None:
                on_epoch(epoch, total / len(x))
    return model.eval()
