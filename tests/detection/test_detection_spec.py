"""The text form: round trips, what it refuses, and that nothing in it ever runs."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offmap
from offmap.detection import Component, methods
from offmap.detection.parameters import conforms, describe_type, plain, read_type_hints
from offmap.detection.spec import LONGEST, parse, split, text
from offmap.errors import InputError


def values(hint: Any, grid: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Values of a declared type, many of them sensible."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0], ()), max_size=3).map(tuple)
    simple = {
        int: st.one_of(st.integers(1, 200), st.integers(-(2**63), 2**63 - 1)),
        float: st.one_of(st.floats(0.001, 1), st.floats(1, 100), st.floats(allow_nan=False, allow_infinity=False)),
        bool: st.booleans(),
        str: st.one_of(st.sampled_from(["auto", "none", "True", "block3.conv1"]), st.text(max_size=12)),
        type(None): st.none(),
    }
    options = get_args(hint) if get_origin(hint) is not None else (hint,)
    return st.one_of(
        *([simple[hint]] if hint in simple else [values(option, ()) for option in options]), *map(st.just, grid)
    )


@st.composite
def components(draw: Any) -> Component:
    kind = draw(st.sampled_from(sorted(methods().values(), key=lambda kind: kind.name)))
    hints = read_type_hints(kind)
    given_ = {
        field.name: draw(values(hints[field.name], kind.grid.get(field.name, ())))
        for field in fields(kind)
        if draw(st.booleans())
    }
    try:
        return kind(**given_)
    except InputError:
        example = kind.example or kind.name
        return parse(example).components[0]


@settings(max_examples=300, deadline=None)
@given(components())
def test_every_component_is_read_back_from_its_text(component: Component) -> None:
    spec = text(component)
    if len(spec) <= LONGEST:
        assert parse(spec).components == (component,)
        assert repr(parse(spec).components[0]) == spec


@settings(max_examples=50, deadline=None)
@given(st.lists(components(), min_size=1, max_size=4))
def test_lists_are_split_where_they_were_joined(parts: list[Component]) -> None:
    specs = [repr(part) for part in parts]
    assert split(", ".join(specs)) == specs


@pytest.mark.parametrize(
    ("given_", "canonical"),
    [
        ("energy(1.0)", "energy"),
        ("energy(temperature=1)", "energy"),
        ("energy( 2.0 )", "energy(temperature=2.0)"),
        (" react( 90 ) | dice( p = .7 ) | energy ", "react(90)|dice(0.7)|energy"),
        ("react(c=1.0)|energy", "react(c=1.0)|energy"),
        ("react|energy", "react(90)|energy"),
        ("knn(k=50, alpha=1e-2)", "knn(50, alpha=0.01)"),
        ("knn(10, normalize=false)", "knn(10, normalize=False)"),
        ("react(auto)|energy", "react(auto)|energy"),
        ("react('auto')|energy", "react(auto)|energy"),
        ("(react(90)|dice(0.5))|energy", "react(90)|dice(0.5)|energy"),
        ("react(c=1.0, layer=block3.conv1)|energy", "react(c=1.0, layer='block3.conv1')|energy"),
        ("vim(dimension=None)", "vim"),
        ("vim(none)", "vim"),
    ],
)
def test_canonical_form(given_: str, canonical: str) -> None:
    assert repr(offmap.detector(given_)) == canonical


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "is not a detector"),
        ("   ", "is not a detector"),
        ("react(90)|", "is not a detector"),
        ("|energy", "is not a detector"),
        ("energy energy", "is not a detector"),
        ("energy(", "is not a detector"),
        ("energy\x00", "is not a detector"),
        ("energy\ud800", "is not a detector"),
        ("energie", "did you mean energy"),
        ("ReAct(90)|energy", "did you mean react"),
        ("квакс", "`offmap methods` lists them all"),
        ("react(90)", "ends in a score, for example react\\(90\\)\\|energy"),
        ("energy|react(90)", "ends in a score"),
        ("energy|msp", "energy is a score, and only the last part can be one"),
        ("energy(1, 2)", "energy takes temperature, but 2 values were given"),
        ("msp(3)", "msp takes no parameters"),
        ("energy(t=1)", "energy has no parameter 't'; it takes temperature"),
        ("energy(1, temperature=2)", "temperature is given twice"),
        ("energy(**{})", "no parameter None"),
        ("energy(*[1])", "not a number or a word"),
        ("energy(0)", "energy\\(temperature=0\\): the temperature must be above 0"),
        ("energy(-1)", "must be above 0"),
        ("energy(1e999)", "energy\\(temperature=inf\\): a finite number is needed"),
        ("energy(hot)", "energy\\(temperature='hot'\\): a finite number is needed"),
        ("energy(True)", "a finite number is needed"),
        ("energy(1j)", "is not a number or a word"),
        ("energy(auto)", "auto is offered for no parameter of it only"),
        ("react(190)|energy", "react\\(percentile=190\\): the percentile must be between 0 and 100"),
        ("react(c=1e999)|energy", "a finite number or none is needed"),
        ("react(80, c=1.0)|energy", "a percentile or a threshold, not both"),
        ("react(auto, c=1.0)|energy", "a percentile or a threshold, not both"),
        ("react(layer=3)|energy", "a word or none is needed"),
        ("dice(1.5)|energy", "must be between 0 and 1"),
        ("knn(0)", "k must be a whole number from 1"),
        ("knn(1.5)", "a whole number or auto is needed"),
        (f"knn({'9' * 1000})", "a whole number or auto is needed"),
        ("knn(alpha=0)", "above 0 and at most 1"),
        ("knn(normalize=3)", "true or false is needed"),
        ("knn(seed=1.5)", "a whole number is needed"),
        ("vim(0)", "at least one principal direction"),
        ("vim(2.5)", "a whole number or none is needed"),
        ("nci(alpha=big)", "a finite number is needed"),
        ("temperature_scaling(rows=0)|energy", "at least one input"),
        ("gen(m=0)", "at least one"),
        ("vra(90, 60)|energy", "between the low one and 100"),
        ("1", "is not a method"),
        ("'energy'", "is not a method"),
        ("-energy", "is not a method"),
        ("react(90)+energy", "a detector ends in a score"),
        ("[energy]", "is not a method"),
        ("energy if msp else gen", "is not a method"),
    ],
)
def test_refused_with_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        offmap.detector(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "__import__('os').system('touch {file}')",
        "energy(__import__('os').system('touch {file}'))",
        "energy(open('{file}', 'w'))",
        "energy((lambda: open('{file}', 'w'))())",
        "energy([open('{file}', 'w') for x in (1,)])",
        "energy(temperature=exec(\"open('{file}', 'w')\"))",
        'react(f\'{{open("{file}", "w")}}\')|energy',
        "energy.__class__.__mro__",
        "energy()()",
        "(x := energy)",
        "energy; open('{file}', 'w')",
        "().__class__.__bases__[0].__subclasses__()",
    ],
)
def test_nothing_is_executed(spec: str, tmp_path: Any) -> None:
    file = tmp_path / "pwned"
    with pytest.raises(InputError):
        offmap.detector(spec.format(file=file))
    assert not file.exists()


@pytest.mark.parametrize(
    "spec",
    [
        "energy|" * 280 + "energy",
        "x|" * 990 + "x",
        "energy(" + "-" * 1900 + "1)",
        "energy(" + "(" * 150 + "1" + ")" * 150 + ")",
        "energy(" + "[" * 150 + "]" * 150 + ")",
        "energy(" + "a." * 900 + "a)",
        "energy(" + "not " * 400 + "1)",
        "a(" * 150 + ")" * 150,
        "energy(" + "1," * 900 + ")",
        "e" * LONGEST,
        "e" * (LONGEST + 1),
        "énergie | 能量 | 🔥",
        "energy # comment | react",
        "energy(\n\n\n1)",
    ],
    ids=range(14),
)
def test_long_deep_and_odd_texts_are_refused_or_read(spec: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(InputError):
            assert offmap.detector(spec).components[-1].name == "energy"


def test_split_minds_parentheses_and_quotes() -> None:
    assert split("msp, knn(50, alpha=0.01),react(90)|energy,") == ["msp", "knn(50, alpha=0.01)", "react(90)|energy"]
    assert split("gram(['a', 'b']), msp") == ["gram(['a', 'b'])", "msp"]
    assert split("react(layer='a),b')|energy, msp") == ["react(layer='a),b')|energy", "msp"]
    assert split("") == split(" , ,") == []


def test_numpys_numbers_are_plain_numbers() -> None:
    from offmap import KNN, Energy, ReAct

    assert repr(ReAct(np.float64(90.0)) | Energy(np.float32(2))) == "react(90.0)|energy(temperature=2.0)"
    assert repr(KNN(np.int64(5))) == "knn(5)"
    assert plain([1, (np.float32(0.5),)]) == (1, (0.5,))
    with pytest.raises(InputError, match="finite number"):
        Energy(float("nan"))
    with pytest.raises(InputError, match="finite number"):
        Energy(np.array([1.0, 2.0]))


def test_types_in_words() -> None:
    assert describe_type(int | None) == "a whole number or none"
    assert describe_type(tuple[str, ...]) == "a list, each entry a word"
    assert conforms((1, 2.5), tuple[float, ...])
    assert not conforms((1, "x"), tuple[float, ...])
    assert not conforms(10**400, float)
    assert conforms(object(), Any)
