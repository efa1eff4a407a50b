"""Lists of what is registered, for help texts and for `offmap methods`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from offmap.registry import Registry

REGISTRIES = {
    "methods": "offmap.detection.registry:METHODS",
    "discovery": "offmap.discovery.methods:METHODS",
    "objectives": "offmap.learning.objectives:OBJECTIVES",
    "metrics": "offmap.metrics.detection:METRICS",
    "figures": "offmap.plots.figures:FIGURES",
    "learners": "offmap.openworld.learners:LEARNERS",
    "encoders": "offmap.text.packaged:ENCODERS",
    "readers": "offmap.data.readers:READERS",
    "sets": "offmap.bench.sets:READERS",
    "networks": "offmap.bench.networks:KINDS",
}


def registry(name: str) -> Registry[Any]:
    """Import and return the registry of that name."""
    module, attribute = REGISTRIES[name].split(":")
    found: Registry[Any] = getattr(importlib.import_module(module), attribute)
    return found


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    thing = getattr(thing, "compute", thing)  # of a metric, the function says what it is
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())


def load_plugin(source: str) -> None:
    """Import a user's own file or module, which registers methods, readers and the like as it is imported.

    Parameters
    ----------
    source : str
        A file such as ``my_scores.py``, or a module such as ``my_package.scores``. Its code runs: name what you trust.

    Raises
    ------
    InputError
        If there is no such file or module, or it fails.
    """
    from offmap.errors import InputError, OffmapError

    file = Path(source)
    try:
        if file.suffix != ".py":
            importlib.import_module(source)
            return
        if not file.is_file():
            raise InputError(f"--plugin {source}: there is no such file")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(file.stem, module)
        spec.loader.exec_module(module)
    except OffmapError:
        raise
    except Exception as error:  # a user's code may fail in any way
        raise InputError(f"--plugin {source}: cannot be imported ({type(error).__name__}: {error})") from error


def show_plain_types(parameters: Iterable[Any], ctx: Any) -> None:
    """Let the help show ``--gray`` and not ``--gray <bool>``, ``<path>`` and not ``<list[Path]>``."""
    for parameter in parameters:
        shown = getattr(parameter, "display_type_rich", lambda ctx: None)(ctx) or ""
        plain = "<path>" if "Path" in shown else "<text>"
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif "list[" in shown and getattr(parameter, "multiple", False):
            parameter.metavar = plain
        elif "list[" in shown:  # an argument, of which the other word is the name
            parameter.display_type_rich = lambda ctx, plain=plain: plain


class PlainGroup(TyperGroup):
    """Commands under one name, with flags shown as flags."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        show_plain_types(self.get_params(ctx), ctx)
        super().format_help(ctx, formatter)


class RegistryCommand(TyperCommand):
    """A command in whose help ``{objectives}``, ``{learners}`` … stand for the names that are registered.

    They are filled in when the help is printed: no other run has to import what registers them.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, with names filled in."""
        show_plain_types(self.get_params(ctx), ctx)
        for parameter in self.params:
            text = getattr(parameter, "help", None) or ""
            for name in REGISTRIES:
                if f"{{{name}}}" in text:
                    text = text.replace(f"{{{name}}}", ", ".join(registry(name)))
                    parameter.help = text  # type: ignore[attr-defined]  # options and arguments have it
        super().format_help(ctx, formatter)
