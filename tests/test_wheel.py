"""The wheel holds every file of the library, and README's example runs from it in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from test_docs import ROOT, examples


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a process without the path of this one, and fail with what it said."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OFFMAP_DATA")}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the build back-end that pyproject.toml names, which is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    code = f"import hatchling.build; print(hatchling.build.build_wheel({str(folder)!r}))"
    done = run(sys.executable, "-c", code, cwd=ROOT)
    return folder / done.stdout.split()[-1]


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    source = ROOT / "src"
    there = {
        str(file.relative_to(source))
        for file in (source / "offmap").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    held = set(zipfile.ZipFile(wheel).namelist())
    assert sorted(there - held) == []
    assert {"offmap/report/assets/page.html", "offmap/service/triage/static/triage.js", "offmap/py.typed"} <= held
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in held)


def test_the_readme_runs_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """A new environment sees the packages that offmap needs, but offmap itself only as the wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], check=True)
    binaries = tmp_path / "fresh" / "bin"
    (packages,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        binaries / "python",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run(install, check=True, capture_output=True)
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    code = "\n".join(["import offmap; print(offmap.__file__)", *examples(ROOT / "README.md")])
    done = run(binaries / "python", "-I", "-c", code, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == str(packages / "offmap" / "__init__.py")
    assert "Verdicts(" in done.stdout
    assert "mahalanobis" in run(binaries / "offmap", "methods", cwd=tmp_path).stdout
