"""Rules that the source keeps: one purpose per module and function, one class per name, first lines that say it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import offmap

SOURCE = Path(offmap.__file__).parent
MODULES = {str(file.relative_to(SOURCE)): file.read_text() for file in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(text) for name, text in MODULES.items()}
MODULE_LINES, FUNCTION_LINES, ARGUMENTS = 400, 60, 9

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.AST) -> Iterator[Definition]:
    return (node for node in ast.walk(tree) if isinstance(node, Definition))


def docstring_lines(node: ast.AST) -> int:
    first = getattr(node, "body", [None])[0]
    found = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return first.end_lineno - first.lineno + 1 if found else 0


def test_a_module_has_one_purpose():
    sizes = {
        name: len(text.splitlines()) - sum(map(docstring_lines, [TREES[name], *definitions(TREES[name])]))
        for name, text in MODULES.items()
    }
    long = {name: size for name, size in sizes.items() if size > MODULE_LINES}
    assert not long, "lines without docstrings; split these by purpose"


def test_a_function_has_one_purpose():
    long = {}
    for name, tree in TREES.items():
        for node in definitions(tree):
            if not isinstance(node, ast.ClassDef):
                lines = node.end_lineno - node.body[0].lineno + 1 - docstring_lines(node)
                if lines > FUNCTION_LINES:
                    long[f"{name}:{node.name}"] = lines
    assert not long, "lines of the body; split these"


def test_a_constructor_takes_few_arguments():
    many = {}
    for name, tree in TREES.items():
        for node in definitions(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                count = len(node.args.args + node.args.kwonlyargs) - 1
                if count > ARGUMENTS:
                    many[f"{name}:{node.lineno}"] = count
    assert not many


def test_a_public_class_name_is_defined_once():
    places: dict[str, list[str]] = {}
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_first_lines_say_what_a_thing_does():
    bad = []
    for name, tree in TREES.items():
        for node in definitions(tree):
            text = ast.get_docstring(node)
            decorators = {each.id for each in getattr(node, "decorator_list", []) if isinstance(each, ast.Name)}
            if text and not decorators & {"property", "cached_property"} and text.split()[0] in ("What", "Whether"):
                bad.append(f"{name}:{node.lineno} {node.name}")
    assert not bad, "a first line is a sentence such as 'Return ...', or names the thing for a class"


def test_every_package_of_an_extra_is_pinned_and_pins_are_pins():
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    root = Path(__file__).parents[1]
    pins = [Requirement(line) for line in (root / "constraints.txt").read_text().splitlines()]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    pinned = {canonicalize_name(pin.name) for pin in pins}
    assert {canonicalize_name(Requirement(one).name) for one in wanted} - pinned == {
        "offmap",
        "umap-learn",
    }  # no target of the Makefile installs the latter
