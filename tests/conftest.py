"""What every test may use: the data folder and a real browser, each when it is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # fixtures hold no examples, and share one module name

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = os.environ.get("OFFMAP_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("OFFMAP_DATA does not name a folder with the data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, or a skip that names it; in CI it must be there."""
    executable = shutil.which("chromium")
    if executable is None:
        reason = "no chromium on this machine (apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield opened
        opened.close()
