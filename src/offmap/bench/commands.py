"""The commands of `offmap bench` as functions: list, run and write, download."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offmap.bench.suites import list_built_in, load_suite
from offmap.data.images import ENVIRONMENT

Told = Callable[[str], None]


def describe_suites() -> tuple[dict[str, Any], str]:
    """Describe the suites that come with offmap, as plain values and as text.

    Examples
    --------
    >>> found, text = describe_suites()
    >>> sorted(found["suites"])[:2]
    ['c10-5', 'c100-50']
    """
    from offmap.bench.open_world import list_open_world, load_open_world

    found = {name: load_suite(name).about for name in list_built_in()}
    found |= {name: load_open_world(name).about for name in list_open_world()}
    width = max(map(len, found))
    return {"suites": found}, "\n".join(f"{name:<{width}}  {about}" for name, about in found.items())


def run_and_write(suite: str, out: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """Run a suite and write ``results.json``, ``report.html``, and tables as CSV, Markdown and LaTeX.

    Parameters
    ----------
    suite : str
        Name or file of the suite.
    out : Path
        Folder for the results.
    **options : Any
        As in `offmap.bench.runner.run_suite`.

    Returns
    -------
    result : dict
        The answer for ``--json``.
    text : str
        The answer for a person.
    """
    out.mkdir(parents=True, exist_ok=True)
    from offmap.bench.result_tables import write_tables
    from offmap.bench.runner import run_suite
    from offmap.bench.suite_page import build_suite_page

    found = run_suite(load_suite(suite), **options)
    found.to_json(out / "results.json")
    tables = write_tables(found, out)
    report = build_suite_page(found).write(out / "report.html")
    result = {
        "suite": found.suite,
        "rows": len(found.rows),
        "skipped": list(found.skipped),
        "results": str(out / "results.json"),
        "report": str(report),
        "tables": [str(table) for table in tables],
    }
    return result, f"{found}\n\nThe report is {report}"


def run_open_world_and_write(suite: str, out: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """Run an open-world suite and write ``results.json`` and ``report.html``.

    Parameters
    ----------
    suite : str
        Name or file of the suite.
    out : Path
        Folder for the results; runs that it holds are not repeated.
    **options : Any
        As in `offmap.bench.open_world_runner.run_open_world`.

    Returns
    -------
    tuple of dict, str
        The answer for ``--json``, and for a person.
    """
    from offmap.bench.open_world import load_open_world
    from offmap.bench.open_world_page import build_open_world_page
    from offmap.bench.open_world_runner import run_open_world

    found = run_open_world(load_open_world(suite), out, **options)
    report = build_open_world_page(found).write(out / "report.html")
    result = {
        "suite": found.suite.name,
        "rows": len(found.rows),
        "skipped": list(found.skipped),
        "results": str(out / "results.json"),
        "report": str(report),
    }
    return result, f"{found}\n\nThe report is {report}"


def describe_downloads() -> tuple[dict[str, Any], str]:
    """Describe where the standard sets come from, as plain values and as text."""
    from offmap.bench.downloads import SETS

    rows = {
        name: {"files": [{"url": f.url, f.algorithm: f.checksum} for f in entry.files], "licence": entry.licence}
        for name, entry in SETS.items()
    }
    lines = []
    for name, entry in SETS.items():
        lines.append(f"{name}  ({entry.licence})")
        lines += [f"  {f.url}\n    {f.algorithm} {f.checksum}" for f in entry.files]
    lines.append("offmap bench --get NAME --data DIR fetches and checks them; --mirror for another address")
    return {"downloads": rows}, "\n".join(lines)


def get_downloads(
    named: str | None, data: Path | None, mirror: str | None, on_step: Told
) -> tuple[dict[str, Any], str]:
    """Download what a suite needs, or sets by name, into the data folder, each file checked.

    Parameters
    ----------
    named : str or None
        A suite, or sets separated by commas.
    data : Path or None
        The data folder; the environment's ``OFFMAP_DATA``, or else ``data``, by default.
    mirror : str or None
        An address to download from instead.
    on_step : callable
        Called with a text when a step begins.

    Returns
    -------
    tuple of dict, str
        The files as plain values and as text.
    """
    from offmap.bench.downloads import SETS, fetch_set
    from offmap.bench.suite_downloads import get_suite
    from offmap.detection.spec import split
    from offmap.errors import InputError

    if named is None:
        raise InputError(f"--get: name a suite, or sets separated by commas; there are {', '.join(SETS)}")
    folder = data or Path(os.environ.get(ENVIRONMENT, "data"))
    suites = list_built_in()
    if named not in suites and not named.endswith(".toml"):
        files = [str(file) for name in split(named) for file in fetch_set(name, folder, mirror=mirror, on_step=on_step)]
        return {"files": files}, "\n".join(files)
    found, accuracy = get_suite(load_suite(named), folder, mirror=mirror, on_step=on_step)
    files = [str(file) for file in found]
    lines = [*files, *([] if accuracy is None else [f"{accuracy:.2f} % of the test inputs right, as published"])]
    return {"files": files, "accuracy": accuracy}, "\n".join(lines)
