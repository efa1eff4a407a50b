"""What a command checks before it works: that its results can be written and its device is there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path


def check_outputs(table: Path | None = None, page: Path | None = None) -> None:
    """Refuse a table or a page that could not be written, before any work is done.

    Parameters
    ----------
    table : Path or None, default=None
        A file for `offmap.data.write_table`.
    page : Path or None, default=None
        A file for a report.
    """
    from offmap.data import check_table

    check_table(table)
    if page is not None:
        check_page(page)


def check_file(file: Path | None) -> None:
    """Refuse a file that could not be written, before any work is done.

    Examples
    --------
    >>> check_file(Path("nowhere/guard.offmap"))
    Traceback (most recent call last):
    ...
    offmap.errors.InputError: nowhere/guard.offmap: there is no folder nowhere; make it first
    """
    from offmap.errors import InputError

    if file is None:
        return
    if file.is_dir():
        raise InputError(f"{file}: a folder; give the name of a file in it")
    if not file.parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent}; make it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InputError(f"{file}: cannot be written here; choose another place, or ask for the right to write")


def check_folder(folder: Path) -> None:
    """Refuse a folder that could not be made or written to, before any work is done."""
    from offmap.errors import InputError

    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"{folder}: {there} is a file; a folder is needed here, choose another name")
    if not os.access(there, os.W_OK):
        raise InputError(f"{folder}: cannot be written here; choose another place, or ask for the right to write")


def check_packages(what: str, packages: Sequence[str], extra: str) -> None:
    """Refuse what needs packages that are not there, and name the extra that has them.

    Examples
    --------
    >>> check_packages("a report", ["numpy", "no_such_package"], "report")
    Traceback (most recent call last):
    ...
    offmap.errors.DependencyError: a report needs no_such_package, not installed: pip install 'offmap[report]'
    """
    from offmap.errors import DependencyError

    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise DependencyError(f"{what} needs {' and '.join(missing)}, not installed: pip install 'offmap[{extra}]'")


def check_page(file: Path | None) -> None:
    """Refuse a report that could not be written: another ending, no such folder, packages that are not there."""
    from offmap.errors import InputError

    check_packages("a report", ("jinja2", "plotly"), "report")
    if file is None:
        return
    if file.suffix not in (".html", ".htm"):
        raise InputError(f"{file}: a report ends in .html")
    check_file(file)


def check_encoder(named: str | None) -> None:
    """Refuse an encoder that is neither a packaged one nor a file, before anything is read.

    Examples
    --------
    >>> check_encoder("minilm")
    """
    if named is None or ":" in named or Path(named).exists():
        return
    from offmap.errors import InputError
    from offmap.text import ENCODERS

    if named not in ENCODERS:
        raise InputError(
            f"--encoder {named}: no such file or folder; the packaged encoders are {', '.join(ENCODERS)}; else give "
            "an .onnx file beside its tokenizer.json, a folder with both, or package.module:function"
        )


def check_device(device: str | None) -> None:
    """Refuse a device that is not there, before anything is read.

    Examples
    --------
    >>> check_device("cpu")
    >>> check_device("gpu")
    Traceback (most recent call last):
    ...
    offmap.errors.InputError: --device gpu: no such device; give cpu, cuda, cuda:1, mps ...
    """
    from offmap.errors import InputError

    if device is None or device == "cpu":
        return
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise InputError(f"--device {device}: no such device; give cpu, cuda, cuda:1, mps ...") from error
    there = torch.cuda.is_available() if kind == "cuda" else kind != "mps" or torch.backends.mps.is_available()
    if not there:
        raise InputError(f"--device {device}: this machine offers no {kind}; leave it out to run on the CPU")
