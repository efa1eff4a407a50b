"""The command line: one file per command, none with logic of its own.

Exit codes: 0 done, 1 offmap refused (one line on stderr says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_type_hints

import typer

from offmap.cli import (
    bench,
    compare,
    demo,
    discover,
    explain,
    export,
    extract,
    finetune,
    fit,
    guard,
    learn,
    loop,
    methods,
    recalibrate,
    scope,
    score,
    serve,
)
from offmap.cli.examples import show_example
from offmap.cli.registered import PlainGroup, RegistryCommand, load_plugin
from offmap.errors import OffmapError, OffmapWarning

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", help="Import this .py file or module first: what it registers can be named. May be given again."
    ),
]
_DETECT, _CLASSES, _RUN, _STUDY = "Detect unknown inputs", "Find and learn new classes", "Run it", "Study methods"
COMMANDS: dict[str, tuple[str, Callable[..., None]]] = {  # by what a user wants to do
    "demo": ("Start here", demo.demo),
    "guard": ("Start here", guard.guard),
    "extract": (_DETECT, extract.extract),
    "fit": (_DETECT, fit.fit),
    "score": (_DETECT, score.score),
    "recalibrate": (_DETECT, recalibrate.recalibrate),
    "discover": (_CLASSES, discover.discover),
    "finetune": (_CLASSES, finetune.finetune),
    "learn": (_CLASSES, learn.learn),
    "loop": (_CLASSES, loop.loop),
    "export": (_RUN, export.export),
    "serve": (_RUN, serve.serve),
    "compare": (_STUDY, compare.compare),
    "explain": (_STUDY, explain.explain),
    "methods": (_STUDY, methods.methods),
    "bench": (_STUDY, bench.bench),
}

app = typer.Typer(
    name="offmap",
    help="Tells you when your model is off the map, and redraws the map.",
    cls=PlainGroup,
    epilog=show_example("guard"),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _offmap(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from offmap import __version__

        print(__version__)
        raise typer.Exit


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Print warnings of offmap's own as one line, without the place in our code that gave them."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            if issubclass(category, OffmapWarning):
                print(f"offmap: warning: {message}", file=sys.stderr)
            else:
                shown(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Import plugins first; errors made on purpose become one line and an exit code, anything else is a bug."""

    @functools.wraps(command)
    def run(*args: Any, plugin: list[str] | None = None, **kwargs: Any) -> None:
        try:
            with _told_in_one_line():
                for source in plugin or ():
                    load_plugin(source)
                command(*args, **kwargs)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output has gone; Python would complain at exit
            raise typer.Exit(0) from None
        except (OffmapError, OSError) as error:
            message = " ".join(str(error).split())
            print(f"offmap: {message}", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print("offmap: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    hints = get_type_hints(command, include_extras=True) | {"plugin": Plugins}
    own = inspect.signature(command)
    last = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    kept = [one.replace(annotation=hints[name]) for name, one in own.parameters.items()]
    run.__signature__ = own.replace(parameters=[*kept, last])  # type: ignore[attr-defined]  # typer reads this
    run.__annotations__ = hints
    return run


for _name, (_panel, _command) in COMMANDS.items():
    _made = app.command(_name, cls=RegistryCommand, epilog=show_example(_name), rich_help_panel=_panel)
    _made(_guarded(_command))


_scope = typer.Typer(
    cls=PlainGroup,
    help="A guard for an application of a language model, from on-topic examples.",
    no_args_is_help=True,
)
for _name, _command in {"fit": scope.fit, "check": scope.check}.items():
    _scope.command(_name, cls=RegistryCommand, epilog=show_example(f"scope {_name}"))(_guarded(_command))
app.add_typer(_scope, name="scope", rich_help_panel=_RUN)


def main() -> None:
    """Run the command line."""
    app()
