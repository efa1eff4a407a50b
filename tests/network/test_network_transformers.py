"""Real classifiers of Hugging Face's transformers, small and with random weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import offmap
from offmap import Network

transformers = pytest.importorskip("transformers")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_labels": 3}


def test_an_image_classifier() -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL)
    net = Network(transformers.ViTForImageClassification(config))
    acts = net.extract([{"pixel_values": torch.randn(5, 3, 16, 16), "labels": torch.arange(5) % 3} for _ in range(8)])
    assert acts.features.shape == (40, 16)
    assert acts.labels is not None
    np.testing.assert_allclose(net.head(acts.features), acts.logits, atol=1e-5)
    assert "16 features from before 'classifier', 3 classes" in str(net)


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "Roberta"])
def test_a_sequence_classifier(kind: str) -> None:
    torch.manual_seed(0)
    options = SMALL | {"vocab_size": 50, "max_position_embeddings": 40}
    if kind == "DistilBert":
        options = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "num_labels": 3}
    config = getattr(transformers, f"{kind}Config")(**options)
    net = Network(getattr(transformers, f"{kind}ForSequenceClassification")(config))
    tokens = torch.randint(2, 50, (20, 6))
    acts = net.extract([{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in tokens.split(5)])
    assert acts.features.shape == (20, 16)
    np.testing.assert_allclose(net.head(acts.features), acts.logits, atol=1e-5)
    guard = offmap.detector("react(90)|energy").fit(acts).calibrate(acts, tpr=0.5)
    assert 0 < guard(acts).known.mean() < 1
