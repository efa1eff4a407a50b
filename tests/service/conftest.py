"""One launcher of servers for all tests of a worker."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs pip install 'offmap[serve]'")

from service_kit import Launcher


@pytest.fixture(scope="session")
def launcher(tmp_path_factory):
    made = Launcher(tmp_path_factory.mktemp("servers"))
    yield made
    made.close()
