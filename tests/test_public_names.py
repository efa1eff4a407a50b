"""The public face: names that load their part when used, and an import that costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import offmap


def modules_after(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sorted(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize(
    "statement", ["import offmap", "import offmap; offmap.Activations; offmap.errors; dir(offmap)"]
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    heavy = {"torch", "sklearn", "scipy", "plotly", "faiss", "onnxruntime", "pandas", "jinja2"}
    assert not heavy & modules_after(statement)


def test_names_load_when_used() -> None:
    assert "torch" in modules_after("import offmap; offmap.detector")
    assert offmap.Energy is offmap.detection.method("energy")
    assert offmap.__version__
    assert {"detector", "load", "metrics"} <= set(dir(offmap))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        offmap.Nothing  # noqa: B018 - looking it up is the test
    with pytest.raises(AttributeError):
        offmap._private  # noqa: B018 - looking it up is the test
