"""Small real networks of every kind a user may bring, and a picture of everything that must not change in them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """Convolutions with BatchNorm and dropout, in a body of stages."""

    def __init__(self, classes: int = 5, dropout: float = 0.3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.drop(self.block(self.stem(x)).mean((2, 3))))


class Tokens(nn.Module):
    """A transformer whose head answers for every token; the model then picks the last one that is not padding."""

    def __init__(self, picks: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        )
        self.score = nn.Linear(8, 3, bias=False)
        self.picks = picks

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, Any]:
        hidden = self.encoder(self.embed(input_ids))
        if not self.picks:
            return {"logits": self.score(hidden[:, 0]), "hidden": hidden}
        last = (input_ids != 0).sum(1) - 1 if attention_mask is None else attention_mask.sum(1) - 1
        return {"logits": self.score(hidden)[torch.arange(len(hidden)), last], "hidden": hidden}


class ConvHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
        self.classifier = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(x)).mean((2, 3))


class FunctionalHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.weight = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.body(x), self.weight)


class Ending(nn.Module):
    """A linear head whose answer is changed afterwards."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.fc = nn.Linear(6, 3)
        self.ending = ending

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.fc(self.body(x))
        if self.ending == "softmax":
            return logits.log_softmax(1)
        if self.ending == "in place":
            return logits.mul_(2.5)
        return {"tuple": (logits, "more"), "list": [logits], "double": logits.double()}[self.ending]


class Restless(nn.Module):
    """Writes to its buffers, grows new ones and draws random numbers, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("other", torch.zeros(2))
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.other = self.other + 1
        self.register_buffer("cache", torch.ones(1))
        np.random.rand()  # noqa: NPY002 - on purpose
        random.random()
        return self.fc(x + torch.randn_like(x))


def conv_net(seed: int = 0, **options: Any) -> ConvNet:
    """Initialised by seed, with running statistics that are not the initial ones."""
    torch.manual_seed(seed)
    model = ConvNet(**options)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 3, 8, 8) * 2 + 1)
    return model.eval()


def images(n: int = 10, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def picture(model: nn.Module) -> dict[str, Any]:
    """Everything about a model and the process that a call must leave as it was."""
    modules = dict(model.named_modules())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "training": {name: module.training for name, module in modules.items()},
        "tracking": {name: getattr(module, "track_running_stats", None) for name, module in modules.items()},
        "hooks": {(name, kind): list(getattr(module, kind)) for name, module in modules.items() for kind in hooks},
        "objects": {name: (id(tensor), tensor.data_ptr(), tensor.device) for name, tensor in tensors.items()},
        "values": {name: tensor.detach().clone().numpy().tobytes() for name, tensor in tensors.items()},
        "needs gradients": {name: tensor.requires_grad for name, tensor in tensors.items()},
        "gradients": {
            name: None if tensor.grad is None else (id(tensor.grad), tensor.grad.numpy().tobytes())
            for name, tensor in tensors.items()
        },
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": np.random.get_state()[1].tobytes(),  # noqa: NPY002 - the global state is what is watched
        "python": random.getstate(),
        "gradients on": torch.is_grad_enabled(),
    }
