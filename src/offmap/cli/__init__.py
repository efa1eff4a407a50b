"""The command line: one file per command, none with logic of its own.

Exit codes: 0 done, 1 offmap refused (one line on stderr says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
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
from offmap.cli.registered import RegistryCommand, load_plugin
from offmap.errors import OffmapError

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", help="Import this .py file or module first: what it registers can be named. May be given again."
    ),
]
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "guard": guard.guard,
    "extract": extract.extract,
    "fit": fit.fit,
    "score": score.score,
    "recalibrate": recalibrate.recalibrate,
    "compare": compare.compare,
    "discover": discover.discover,
    "learn": learn.learn,
    "loop": loop.loop,
    "explain": explain.explain,
    "export": export.export,
    "serve": serve.serve,
    "methods": methods.methods,
    "bench": bench.bench,
}

app = typer.Typer(
    name="offmap",
    help="Tells you when your model is off the map, and redraws the map.",
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


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Import plugins first; errors made on purpose become one line and an exit code, anything else is a bug."""

    @functools.wraps(command)
    def run(*args: Any, plugin: list[str] | None = None, **kwargs: Any) -> None:
        try:
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


for _name, _command in COMMANDS.items():
    app.command(_name, cls=RegistryCommand, epilog=show_example(_name))(_guarded(_command))


_scope = typer.Typer(
    help="A guard for an application of a language model, from on-topic examples.", no_args_is_help=True
)
for _name, _command in {"fit": scope.fit, "check": scope.check}.items():
    _scope.command(_name, cls=RegistryCommand, epilog=show_example(f"scope {_name}"))(_guarded(_command))
app.add_typer(_scope, name="scope")


def main() -> None:
    """Run the command line."""
    app()
