"""`offmap methods`: what there is to choose from."""

from __future__ import annotations

from offmap.cli.options import Json, show


def methods(as_json: Json = False) -> None:
    """List the methods: their text form, what they read, where they come from."""
    from offmap.detection import Shaper
    from offmap.detection import methods as registered

    rows = [
        {
            "name": name,
            "kind": "shaper" if issubclass(kind, Shaper) else "score",
            "reads": _declared(kind.reads),
            "fits": _declared(kind.fits),
            "about": " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split()),
            "paper": kind.paper,
        }
        for name, kind in registered().items()
    ]
    width = max(len(str(row["name"])) for row in rows)
    words = "\n".join(f"{row['name']:{width}}  {row['kind']:6}  {row['about']}" for row in rows)
    show({"methods": rows}, as_json, words)


def _declared(words: object) -> list[str] | None:
    """What a method says it reads; nothing where that depends on its parameters."""
    return list(words) if isinstance(words, tuple) else None
