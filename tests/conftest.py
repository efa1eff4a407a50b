"""What every test may use: the data folder when it is there, and generated activations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = os.environ.get("OFFMAP_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("OFFMAP_DATA does not name a folder with the data sets")
    return Path(folder)
