"""From a torch module to an ONNX graph: `torch.onnx` without its messages, and without losing digits."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from offmap.errors import DependencyError, InputError

OPSET = 18  # the oldest that torch writes; models in older ones are brought up to it


def import_packages() -> tuple[Any, Any, Any]:
    """Import `onnx`, `onnx_ir` and `onnxruntime`, or raise a sentence that says how to get them."""
    try:
        import onnx
        import onnx_ir
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise DependencyError(
            f"offmap.export needs onnx, onnxscript and onnxruntime ({error}): pip install offmap[onnx]"
        ) from error
    return onnx, onnx_ir, onnxruntime


def trace_module(
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: Sequence[str],
    opset: int | None,
    failed: Callable[[str], str],
) -> Any:
    """Trace a module that takes tensors in order into a graph for any batch size.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode.
    inputs : dict of str to Tensor
        Examples of its inputs by the names they get, at least two rows each.
    outputs : sequence of str
        The names of what it returns.
    opset : int or None
        The version of ONNX's operators; torch's choice when `None`.
    failed : callable
        Makes the sentence to raise from torch's reason.

    Returns
    -------
    onnx_ir.Model
        The graph.

    Raises
    ------
    InputError
        If torch cannot trace the module.
    """
    import_packages()
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=(tuple({0: "batch"} for _ in inputs),),
                opset_version=opset,
                custom_translation_table=_precise(),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch raises kinds of its own for everything it cannot trace
        raise InputError(failed(_reason(error))) from error
    assert program is not None
    return _without_traces(program.model)


def _without_traces(model: Any) -> Any:
    """Return the graph without torch's notes on where in whose source each node came from."""
    for graph in (model.graph, *model.graph.subgraphs()):
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*graph.inputs, *graph.initializers.values()):
            value.metadata_props.clear()
    model.metadata_props.clear()
    return model


def repeat_single_row(tensor: Tensor) -> Tensor:
    """Repeat a single row: what torch traces from one row would fit one row only.

    Parameters
    ----------
    tensor : Tensor
        A tensor of any number of rows.

    Returns
    -------
    Tensor
        A tensor of at least two rows.
    """
    return tensor if len(tensor) > 1 else torch.cat([tensor, tensor])


def _precise() -> dict[Any, Callable[[Any], Any]]:
    """`log1p` and `expm1` with all their digits; torch would trace log(1 + x) and exp(x) - 1, which lose small x.

    With u = 1 + x rounded, log(u)·x/(u - 1) is log1p(x) to a few units in the last place, and likewise
    (u - 1)·x/log(u) with u = exp(x) is expm1(x) (Kahan; Higham 2002, sec. 1.14.1).
    """
    from onnxscript import opset18 as op

    def log1p(x: Any) -> Any:
        one, zero = op.CastLike(1.0, x), op.CastLike(0.0, x)
        u = op.Add(x, one)
        above = op.Sub(u, one)
        return op.Where(op.Equal(above, zero), x, op.Div(op.Mul(op.Log(u), x), above))

    def expm1(x: Any) -> Any:
        one, zero = op.CastLike(1.0, x), op.CastLike(0.0, x)
        u = op.Exp(x)
        above = op.Sub(u, one)
        small = op.Where(op.Equal(above, zero), x, op.Div(op.Mul(above, x), op.Log(u)))
        return op.Where(op.Less(op.Abs(x), one), small, above)

    return {torch.ops.aten.log1p.default: log1p, torch.ops.aten.expm1.default: expm1}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's remarks about packages it does not need, and the traceback it logs before raising, off stderr."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    before = [(logger, logger.level) for logger in loggers]
    try:
        for logger, _ in before:
            logger.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Return the first lines of the error that started it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else type(error).__name__
