"""SORL's optimum without training: eigenvectors of a neighbour graph with labelled classes as cliques."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from offmap.discovery.inputs import KnownClasses
from offmap.errors import InputError
from offmap.graph import spectral_features
from offmap.learning import building
from offmap.learning.encoders import Lookup, Whitening, make_lookup_encoder
from offmap.learning.grouping import group_rows
from offmap.learning.inputs import Inputs
from offmap.learning.model import OpenWorldModel, OpenWorldNet

SPECTRAL = "sorl-spectral"
SETTINGS: Mapping[str, Any] = {
    "neighbours": 30,
    "eta_l": 4.0,
    "diffusion": 4.0,
    "columns": 0,
    "shrinkage": 0.5,  # of the whitening before the graph
    "nearest": 10,  # rows that stand in for a new one
}
GRID: Mapping[str, Sequence[Any]] = {"neighbours": (15, 50), "eta_l": (1.0, 10.0), "diffusion": (0.5, 8.0)}


def fit_closed_form(
    data: Inputs, known: KnownClasses, n_classes: int | str | None, seed: int, settings: Mapping[str, Any]
) -> OpenWorldModel:
    """Find classes among the eigenvectors of the neighbour graph (thesis, section 7.3.2).

    Parameters
    ----------
    data : Inputs
        Embeddings.
    known : KnownClasses
        What is known of each row.
    n_classes : int or "auto", optional
        Known and novel classes together; estimated by default.
    seed : int
        Seed of the eigenvectors and of k-means.
    settings : mapping
        Values that replace those of `SETTINGS`.

    Returns
    -------
    OpenWorldModel
        The finished model.
    """
    if data.kind != "embeddings":
        raise InputError(
            f"{SPECTRAL}: it reads embeddings; encode texts, or train an encoder on pictures, and give the features"
        )
    unknown = settings.keys() - SETTINGS.keys()
    if unknown:
        raise InputError(f"{SPECTRAL}: there is no setting {sorted(unknown)[0]!r}; it has {', '.join(SETTINGS)}")
    chosen = {**SETTINGS, **settings}
    codes, rows = known.codes, data.tensor.numpy()
    front = Whitening(rows.shape[1])
    front.fit(rows, codes, chosen["shrinkage"])
    prepared = front(data.tensor)
    k = building.count_or_check(n_classes, prepared, known, seed)
    given = {name: chosen[name] for name in ("neighbours", "eta_l", "diffusion", "columns")}
    features = spectral_features(prepared.numpy(), codes, k, **given, seed=seed)
    labels, centres = group_rows(features, k, codes, len(known), seed)
    used = building.find_used_classes(labels, k, len(known))
    body = Lookup(len(rows), rows.shape[1], features.shape[1], chosen["nearest"])
    body.bank.copy_(prepared)
    body.values.copy_(torch.from_numpy(features))
    net = OpenWorldNet(make_lookup_encoder(front, body), nn.Identity(), features.shape[1], len(used))
    config = {"objective": SPECTRAL, "settings": chosen, "seed": seed, "n_classes": k}
    return building.assemble_model(net, torch.from_numpy(centres), torch.zeros(k), used, known, [], config)
