"""`offmap bench`: measure every method on known data, with the thesis' figures beside ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import Json, say, show


def bench(
    suite: Annotated[
        str | None,
        typer.Argument(help="A suite that --list names, or a .toml file of your own; with --get also names of sets."),
    ] = None,
    own_suite: Annotated[
        Path | None, typer.Option("--suite", help="The same by name: a .toml file of your own.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help='Detectors separated by commas, in place of the suite\'s own; "all" for all.')
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The folder with the sets; OFFMAP_DATA by default.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for results.json and report.html.")] = Path("out/bench"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of methods that draw random numbers.")] = None,
    limit: Annotated[int | None, typer.Option(min=2, help="At most so many inputs per set.")] = None,
    passes_limit: Annotated[
        int | None, typer.Option(min=2, help="At most so many for methods that run the network again, such as odin.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run the network even where the data folder holds its features.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Where networks run or learn, such as cuda; the CPU by default.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="The folder for activations, found again by content.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="Open-world suites: whether the number of classes is given or estimated.")
    ] = None,
    first_seed: Annotated[int | None, typer.Option(min=0, help="Open-world suites: the first of the seeds.")] = None,
    list_suites: Annotated[bool, typer.Option("--list", help="List the suites and stop.")] = False,
    downloads: Annotated[
        bool, typer.Option("--downloads", help="Say where the standard sets come from and stop.")
    ] = False,
    get: Annotated[
        bool,
        typer.Option("--get", help="Fetch and check what the suite needs, or sets by name, separated by commas."),
    ] = False,
    mirror: Annotated[str | None, typer.Option(help="With --get: fetch from this address instead.")] = None,
    as_json: Json = False,
) -> None:
    """Run a benchmark suite: a table, results.json, report.html, and results.csv, .md and .tex."""
    from offmap.bench import commands
    from offmap.bench.open_world import is_open_world
    from offmap.cli.checks import check_device
    from offmap.detection.spec import split
    from offmap.errors import InputError

    check_device(device)
    if suite is not None and own_suite is not None:
        raise InputError(f"{suite} and --suite {own_suite}: name one suite")
    suite = suite if own_suite is None else str(own_suite)
    if list_suites:
        answer = commands.describe_suites()
    elif get:
        answer = commands.get_downloads(suite, data, mirror, say)
    elif downloads:
        answer = commands.describe_downloads()
    elif suite is None:
        raise InputError("no suite: name one, or see offmap bench --list")
    elif is_open_world(suite):
        answer = commands.run_open_world_and_write(
            suite,
            out,
            methods=None if methods is None else split(methods),
            data=data,
            on_step=say if sys.stderr.isatty() else lambda step: None,
            seeds=seeds,
            first_seed=first_seed,
            limit=limit,
            classes=classes,
            device=device,
        )
    else:
        answer = commands.run_and_write(
            suite,
            out,
            methods=None if methods is None else split(methods),
            data=data,
            cache=cache,
            fresh=fresh,
            device=device,
            on_step=say if sys.stderr.isatty() else lambda step: None,
            seeds=seeds,
            limit=limit,
            passes_limit=passes_limit,
        )
    show(answer[0], as_json, answer[1])
