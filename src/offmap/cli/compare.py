"""`offmap compare`: methods side by side on the user's own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import InputOptions, Json, wanted, with_inputs


@with_inputs
def compare(
    known: Annotated[Path, typer.Option(help="Known inputs to fit on.")],
    id_test: Annotated[Path, typer.Option(help="Known inputs to test on.")],
    inputs: InputOptions,
    detectors: Annotated[
        str, typer.Argument(help='Separated by commas: "auto, msp, knn(10)".')
    ] = "auto, msp, energy, react(95)|energy, dice(0.7)|energy, mahalanobis, vim, knn(10)",
    ood: Annotated[
        list[str] | None, typer.Option(help="Unknown inputs to test on: a path, or name=path; repeat for more.")
    ] = None,
    val: Annotated[Path | None, typer.Option(help="Held-out known inputs to choose auto on.")] = None,
    outliers: Annotated[Path | None, typer.Option(help="Outliers to choose auto on, such as noise.")] = None,
    noise: Annotated[int | None, typer.Option(min=1, help="With --model: this many noise inputs as outliers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a report: .html or .json.")] = None,
    as_json: Json = False,
) -> None:
    """Compare detectors on your data: how many unknown inputs they let in (FPR95), AUROC, accuracy and time.

    Without --ood, what known inputs say of each: accuracy after shaping and coverage of a threshold.
    """
    import offmap
    from offmap.cli.checks import check_file, check_page
    from offmap.detection.spec import split
    from offmap.errors import InputError

    if out is not None and out.suffix not in (".html", ".json"):
        raise InputError(f"--out {out}: a report is .html or .json")
    check_page(out) if out is not None and out.suffix == ".html" else check_file(out)
    sets = _name_sets(ood or [])
    compared = [offmap.detector(spec) for spec in split(detectors)]
    requirements = wanted(*compared)
    table = offmap.compare(
        compared,
        known=inputs.activations(known, requirements),
        id_test=inputs.activations(id_test, requirements),
        ood={name: inputs.activations(path, requirements, unknown=True) for name, path in sets.items()} or None,
        val=None if val is None else inputs.activations(val, requirements),
        outliers=inputs.outliers(outliers, noise, known, requirements),
    )
    if out is not None:
        (table.to_html if out.suffix == ".html" else table.to_json)(out)
    print(table.to_json() if as_json else table)


def _name_sets(given: Sequence[str]) -> dict[str, Path]:
    """Name sets of unknown inputs: as they say, or by their file."""
    from offmap.errors import InputError

    found: dict[str, Path] = {}
    for entry in given:
        name, equals, path = entry.partition("=")
        if not equals:
            name, path = Path(entry).stem, entry
        if not name or name in found:
            raise InputError(f"--ood {entry}: every set needs a name of its own, as in --ood svhn={path or 'svhn.npz'}")
        found[name] = Path(path)
    return found
