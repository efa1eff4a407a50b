"""`offmap methods`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from offmap.cli.options import Json, show
from offmap.cli.registered import REGISTRIES, registry, summary


def methods(
    what: Annotated[str, typer.Argument(help=f"What to list: {', '.join(REGISTRIES)}.")] = "methods",
    as_json: Json = False,
) -> None:
    """List the methods that can be chosen by name: of detection, or discovery, objectives, learners, readers …"""
    from offmap.errors import InputError

    if what not in REGISTRIES:
        raise InputError(f"{what!r}: there is no such list; choose one of {', '.join(REGISTRIES)}")
    rows = [
        {"name": name, **(_method(kind) if what == "methods" else {}), "about": summary(kind)}
        for name, kind in registry(what).items()
    ]
    texts = [row.get("signature", row["name"]) for row in rows]
    width = min(max(map(len, texts)), 48)
    words = "\n".join(
        "  ".join([f"{text:{width}}", *([f"{row['kind']:6}"] if "kind" in row else []), row["about"]])
        for text, row in zip(texts, rows, strict=True)
    )
    show({what: rows}, as_json, words)


def _method(kind: Any) -> dict[str, Any]:
    from offmap.detection import Shaper
    from offmap.detection.registry import describe_signature

    return {
        "signature": describe_signature(kind),
        "kind": "shaper" if issubclass(kind, Shaper) else "score",
        "reads": _declared(kind.reads),
        "fits": _declared(kind.fits),
        "paper": kind.paper,
    }


def _declared(words: object) -> list[str] | None:
    """Return what a method says it reads; nothing where that depends on its parameters."""
    return list(words) if isinstance(words, tuple) else None
