"""Losses as pure functions of embeddings, labels and prototypes; every one is finite for every batch."""

from offmap.learning.losses.contrastive import contrastive, gcd, simclr, supcon
from offmap.learning.losses.heads import (
    autonovel_pairs,
    cross_entropy,
    deconf_logits,
    group_softmax,
    logitnorm,
    mean_entropy,
    nearest_partners,
    orca_margin,
    orca_pairs,
    rank_statistics,
    sinkhorn,
    uno,
)
from offmap.learning.losses.numbers import nothing
from offmap.learning.losses.opencon import OpenConParts, opencon, prior_divergence, prototype_probabilities
from offmap.learning.losses.spectral import SpectralTerms, clip_norm, nscl, scl, sorl, spectral_terms

__all__ = [
    "OpenConParts",
    "SpectralTerms",
    "autonovel_pairs",
    "clip_norm",
    "contrastive",
    "cross_entropy",
    "deconf_logits",
    "gcd",
    "group_softmax",
    "logitnorm",
    "mean_entropy",
    "nearest_partners",
    "nothing",
    "nscl",
    "opencon",
    "orca_margin",
    "orca_pairs",
    "prior_divergence",
    "prototype_probabilities",
    "rank_statistics",
    "scl",
    "simclr",
    "sinkhorn",
    "sorl",
    "spectral_terms",
    "supcon",
    "uno",
]
