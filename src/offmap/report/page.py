"""One page: plain values go in, one HTML file comes out, with everything it shows inside it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from offmap.errors import DependencyError, InputError
from offmap.plots.svg import draw_svg
from offmap.report.cells import Cell, column_cells, plain, shorten
from offmap.report.inline import markup, picture, trusted
from offmap.store import write_atomically

Best = Literal["max", "min"]
LONG = 30  # rows from which a table scrolls by itself, so that what comes after it is found
VERSIONS_OF = ("offmap", "numpy", "scipy", "scikit-learn", "torch", "plotly")


class Page:
    """A report that is one file: no network, no folder beside it.

    Methods add parts in the order they are called and return the page, so calls can be chained.

    Parameters
    ----------
    title : str
        What the page is about; also the title of the browser's tab.
    summary : str, default=""
        The answer first, in a few plain words. Text as in `text`.

    Examples
    --------
    >>> page = Page("Digits", "**knn(50)** separates the unknown digits best.")
    >>> page = page.section("Methods").table(
    ...     ["method", "FPR95"], [["msp", 47.4], ["knn(50)", 4.2]], best={"FPR95": "min"})
    >>> "<strong>knn(50)</strong>" in page.html()
    True
    """

    def __init__(self, title: str, summary: str = "") -> None:
        self.title = title
        self._summary = summary
        self._parts: list[dict[str, Any]] = []

    def section(self, title: str) -> Self:
        """Start a section; sections are listed at the top of the page.

        Examples
        --------
        >>> '<h2 id="s1">Scores</h2>' in Page("p").section("Scores").html()
        True
        """
        number = 1 + sum(part["kind"] == "section" for part in self._parts)
        return self._add("section", title=title, id=f"s{number}")

    def text(self, text: str) -> Self:
        """Add paragraphs, separated by empty lines; nothing in them is taken as HTML.

        ``**strong**``, ``*emphasis*`` and ```code``` are understood; lines starting with ``- `` make a list.

        Examples
        --------
        >>> "<p>a &lt;b&gt; <em>c</em></p>" in Page("p").text("a <b> *c*").html()
        True
        """
        return self._add("text", html=markup(text))

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any] | Mapping[str, Any]],
        *,
        best: Mapping[str, Best] | None = None,
        digits: int | Mapping[str, int] = 2,
        caption: str = "",
    ) -> Self:
        """Add a table that sorts by a click on a column's name; numbers stand at the right.

        Parameters
        ----------
        columns : sequence of str
            The names of the columns.
        rows : sequence of sequence of Any or mapping of str to Any
            Each a sequence of cells in the order of the columns, or a mapping by column name. A cell is text,
            a number, a truth value or `None` (shown as a dash).
        best : mapping of str to Best or None, default=None
            Columns whose best value is marked: the largest (``"max"``) or the smallest (``"min"``).
        digits : int or mapping of str to int, default=2
            Digits after the point of numbers that are not whole: for all columns, or by column name.
        caption : str, default=""
            A sentence under the table.

        Examples
        --------
        >>> page = Page("p").table(["method", "AUROC"], [["msp", 93.476]], best={"AUROC": "max"}, digits=1)
        >>> 'data-value="93.476">93.5</td>' in page.html()
        True
        """
        names = [str(name) for name in columns]
        marked = dict(best or {})
        if unknown := [name for name in marked if name not in names]:
            raise InputError(f"table(best={marked}): no column is named {unknown[0]!r}; there are {names}")
        cells = [_row(names, row) for row in rows]
        by_column: list[list[Cell]] = [
            column_cells(
                [row[i] for row in cells],
                digits if isinstance(digits, int) else digits.get(name, 2),
                marked.get(name),
            )
            for i, name in enumerate(names)
        ]
        numeric = [any(cell.value is not None for cell in column) for column in by_column]
        shown = [[column[i] for column in by_column] for i in range(len(cells))]
        heads = [
            {
                "name": name,
                "numeric": flag,
                "first": "descending" if flag and marked.get(name) != "min" else "ascending",
            }
            for name, flag in zip(names, numeric, strict=True)
        ]
        return self._add("table", heads=heads, rows=shown, caption=caption, long=len(shown) > LONG)

    def figure(self, figure: Any, caption: str = "") -> Self:
        """Add a plotly figure, or a function without arguments that makes one; the page holds it as a drawing.

        Parameters
        ----------
        figure : plotly.graph_objects.Figure or callable
            The figure, or what makes it.
        caption : str, default=""
            Text below.

        Returns
        -------
        Page
            Itself.

        Examples
        --------
        >>> import plotly.graph_objects as go
        >>> page = Page("p").figure(lambda: go.Figure(go.Bar(y=[1, 2])), "Two bars.")
        >>> page.html().count('class="plot"')
        1
        """
        made = figure() if callable(figure) else figure
        if not hasattr(made, "to_plotly_json"):
            raise InputError(f"figure({type(made).__name__}): a plotly figure is needed, as offmap.plots makes them")
        number = 1 + sum(part["kind"] == "figure" for part in self._parts)
        drawn = draw_svg(made, label=caption or "Figure", name=f"figure-{number}")
        return self._add("figure", svg=trusted(drawn), caption=caption)

    def gallery(
        self,
        items: Sequence[Any],
        captions: Sequence[str] | None = None,
        *,
        caption: str = "",
        size: int = 96,
        longest: int = 160,
    ) -> Self:
        """Add pictures (or short texts) side by side.

        Parameters
        ----------
        items : sequence of Any
            ``uint8`` arrays of height × width, or height × width × 1, 3 or 4; the page holds them as PNG.
            Strings are shown as text.
        captions : sequence of str or None, default=None
            One short line under each.
        caption : str, default=""
            A sentence under all of them.
        size : int, default=96
            The width of a picture on the page in pixels; small pictures are enlarged without blurring.
        longest : int, default=160
            Characters of a text; the rest is left out.

        Examples
        --------
        >>> import numpy as np
        >>> page = Page("p").gallery([np.zeros((8, 8), np.uint8)], ["a 3, taken for an 8"])
        >>> "data:image/png;base64," in page.html()
        True
        """
        lines = [""] * len(items) if captions is None else [str(line) for line in captions]
        if len(lines) != len(items):
            raise InputError(f"gallery: {len(items)} items but {len(lines)} captions; give one each or none")
        cards = [
            {"text": shorten(item, longest), "line": line}
            if isinstance(item, str)
            else {"src": picture(item), "line": line}
            for item, line in zip(items, lines, strict=True)
        ]
        return self._add("gallery", cards=cards, caption=caption, size=int(size))

    def settings(self, values: Mapping[str, Any], title: str = "Settings") -> Self:
        """Add a list of names and values that is folded until it is opened or printed.

        Parameters
        ----------
        values : mapping of str to Any
            May be nested.
        title : str, default="Settings"
            Heading.

        Returns
        -------
        Page
            Itself.

        Examples
        --------
        >>> "<th>net.width</th><td>32</td>" in Page("p").settings({"seed": 0, "net": {"width": 32}}).html()
        True
        """
        return self._add("settings", title=title, pairs=[(name, plain(value)) for name, value in _flat(values)])

    def html(self) -> str:
        """Return the page as text. The same parts give the same text."""
        template = _environment().get_template("page.html")
        return str(
            template.render(
                title=self.title,
                summary=markup(self._summary) if self._summary else "",
                parts=self._parts,
                sections=[part for part in self._parts if part["kind"] == "section"],
                css=_asset("page.css"),
                js=_asset("page.js"),
            )
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, whole or not at all, and say where it is.

        Examples
        --------
        >>> import tempfile
        >>> Page("p").write(tempfile.mkdtemp() + "/page.html").name
        'page.html'
        """
        write_atomically(path, self.html().encode())
        return Path(path)

    def _add(self, kind: str, **values: Any) -> Self:
        self._parts.append({"kind": kind, **values})
        return self

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {len(self._parts)} parts)"


def versions() -> dict[str, str]:
    """Return the versions of offmap and of what its numbers depend on, without importing any of it.

    Examples
    --------
    >>> sorted(versions())[0]
    'numpy'
    """
    found = {}
    for name in VERSIONS_OF:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _row(names: list[str], row: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    if isinstance(row, Mapping):
        if unknown := [name for name in row if name not in names]:
            raise InputError(f"table: a row has a cell for {unknown[0]!r}, which is not among the columns {names}")
        return [row.get(name) for name in names]
    if len(row) != len(names):
        raise InputError(f"table: a row of {len(row)} cells under {len(names)} columns; give one cell per column")
    return list(row)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", value))
    return pairs


def _asset(name: str) -> Any:
    return trusted((Path(__file__).parent / "assets" / name).read_text(encoding="utf-8"))


def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise DependencyError("a report needs jinja2, which is not installed: pip install 'offmap[report]'") from error
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
