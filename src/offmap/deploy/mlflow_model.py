"""A guard as a model of MLflow: logged with its ONNX file alone, loaded as ``pyfunc`` without offmap or torch."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from offmap.deploy import mlflow_loader
from offmap.deploy.exporter import Exported
from offmap.errors import DependencyError, InputError, StoreError

OUTPUTS = {"logits", "score", "p_value", "known"}


def log_guard(exported: Exported | str | os.PathLike[str], name: str = "guard", **options: Any) -> Any:
    """Log a guard to MLflow, to be loaded with ``mlflow.pyfunc.load_model``.

    MLflow keeps the ONNX file and one small module. Where the model is loaded only onnxruntime, pandas
    and ``mlflow-skinny`` are needed; nothing is pickled. `predict` gives, per input, ``class`` (-1 where unknown),
    ``known``, ``p_value``, ``score`` and, where the file has names of classes, ``name``.

    Parameters
    ----------
    exported : Exported or path
        What `offmap.export` returned, or the file that it wrote.
    name : str, default="guard"
        The model's name in MLflow.
    **options : Any
        For ``mlflow.pyfunc.log_model``, such as `registered_model_name` or `input_example`.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its ``model_uri`` is what ``mlflow.pyfunc.load_model`` takes.

    Raises
    ------
    InputError
        If the file is not one that `offmap.export` wrote.
    DependencyError
        If MLflow or ONNX Runtime is not installed.

    See Also
    --------
    offmap.export : Writes the file.

    Examples
    --------
    >>> log_guard("missing.onnx")
    Traceback (most recent call last):
    offmap.errors.InputError: missing.onnx: there is no such file; offmap.export writes one
    """
    path = exported.path if isinstance(exported, Exported) else Path(exported)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; offmap.export writes one")
    data = exported.data if isinstance(exported, Exported) else _weights_beside(path)
    try:
        import mlflow.pyfunc
    except ImportError as error:
        raise DependencyError("log_guard needs MLflow, which is not installed: pip install 'offmap[mlflow]'") from error
    _check_graph(path)
    with tempfile.TemporaryDirectory() as folder:
        for file in (path, data):
            if file is not None:
                shutil.copy2(file, folder)
        requirements = [f"{package}=={version(package)}" for package in ("numpy", "onnxruntime", "pandas")]
        given = {
            "data_path": folder,
            "loader_module": Path(mlflow_loader.__file__).stem,
            "code_paths": [mlflow_loader.__file__],
            "pip_requirements": requirements,
        }
        return mlflow.pyfunc.log_model(name=name, **(given | options))


def _weights_beside(path: Path) -> Path | None:
    """Find the second file of weights; the graph holds its name."""
    graph = path.read_bytes()
    return next((file for file in path.parent.glob("*.data") if file.name.encode() in graph), None)


def _check_graph(path: Path) -> None:
    try:
        outputs = {one.name for one in mlflow_loader.GuardModel(path).session.get_outputs()}
    except ImportError as error:
        raise DependencyError(
            "log_guard needs ONNX Runtime, which is not installed: pip install 'offmap[mlflow]'"
        ) from error
    except Exception as error:  # the runtime has one kind of exception per failure
        raise StoreError(f"{path}: ONNX Runtime does not take the graph: {str(error).strip()[:300]}") from error
    lacking = sorted(OUTPUTS - outputs)
    if lacking:
        raise InputError(f"{path}: not a guard's file, for it has no {', '.join(lacking)}; offmap.export writes one")
