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
from offmap.learning.losses.parts import mutual_divergence, word_shares
from offmap.learning.losses.spectral import SpectralTerms, clip_norm, nscl, scl, sorl, spectral_terms
from offmap.learning.losses.transfer import (
    comex,
    fixmatch,
    kcl_pairs,
    neighbour_targets,
    sharpen_assignments,
    student_t,
    winners_agree,
)

__all__ = [
    "OpenConParts",
    "SpectralTerms",
    "autonovel_pairs",
    "clip_norm",
    "comex",
    "contrastive",
    "cross_entropy",
    "deconf_logits",
    "fixmatch",
    "gcd",
    "group_softmax",
    "kcl_pairs",
    "logitnorm",
    "mean_entropy",
    "mutual_divergence",
    "nearest_partners",
    "neighbour_targets",
    "nothing",
    "nscl",
    "opencon",
    "orca_margin",
    "orca_pairs",
    "prior_divergence",
    "prototype_probabilities",
    "rank_statistics",
    "scl",
    "sharpen_assignments",
    "simclr",
    "sinkhorn",
    "sorl",
    "spectral_terms",
    "student_t",
    "supcon",
    "uno",
    "winners_agree",
    "word_shares",
]
