"""Walking an ONNX graph from its output back to the linear layer that made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap.activations import Head
from offmap.errors import DependencyError, InputError
from offmap.typing import Array

_ENDINGS = ("Softmax", "LogSoftmax", "Sigmoid", "Normalizer")  # what turns logits into probabilities
_PASSED = ("Identity", "Cast", *_ENDINGS)


@dataclass(frozen=True)
class Tap:
    """Where features and logits come from: tensor names, and the head between them when there is one.

    Without a tensor for the logits the head computes them.
    """

    features: str
    logits: str | None
    head: Head | None


class OnnxGraph:
    """Walking an ONNX graph backwards from a tensor to the linear layer that made it."""

    def __init__(self, model: Any) -> None:
        onnx, _ = import_onnx()
        self._onnx = onnx
        self._graph = model.graph
        self._producer = {name: node for node in model.graph.node for name in node.output}
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}

    def logits(self, chosen: str | None = None) -> str:
        """Return the output that holds the logits: the chosen one, the one of that name, or the first with numbers."""
        names = [str(output.name) for output in self._graph.output]
        if chosen is not None:
            if chosen not in names:
                raise InputError(f"output={chosen!r}: the graph has the outputs {', '.join(map(repr, names))}")
            return self._behind_names(chosen)
        if "logits" in names:
            return "logits"
        whole = {self._onnx.TensorProto.INT64, self._onnx.TensorProto.INT32, self._onnx.TensorProto.STRING}
        labels = {output.name for output in self._graph.output if output.type.tensor_type.elem_type in whole}
        return self._behind_names(next((name for name in names if name not in labels), names[0]))

    def _behind_names(self, name: str) -> str:
        """Return the numbers behind a list of dictionaries, which scikit-learn's converter makes of them (ZipMap)."""
        node = self._producer.get(name)
        return str(node.input[0]) if node is not None and node.op_type == "ZipMap" else name

    def width(self, logits: str, found: Tap) -> int | None:
        """Return how many classes the output declares; the width of the head at hand when it declares none."""
        for output in self._graph.output:
            dims = output.type.tensor_type.shape.dim
            if output.name == logits and len(dims) == 2 and dims[1].dim_value:
                return int(dims[1].dim_value)
        return None if found.head is None else found.head.n_classes

    def linear_behind(self, name: str) -> Tap | None:
        """Return the Gemm, MatMul + Add or MatMul that ends in this tensor; a softmax after it is left out."""
        node = self._producer.get(name)
        while node is not None and node.op_type in _PASSED:
            if node.op_type in _ENDINGS:
                name = node.input[0]
            node = self._producer.get(node.input[0])
        if node is None:
            return None
        if node.op_type == "LinearClassifier":
            return self._linear_classifier(node)
        if node.op_type == "Gemm":
            return self._gemm(node, name)
        bias: Array | None = None
        if node.op_type == "Add":
            constants = [self._constant(part) for part in node.input]
            products = [self._maker(part) for part in node.input]
            for product, other in ((products[0], constants[1]), (products[1], constants[0])):
                if product is not None and product.op_type == "MatMul" and other is not None:
                    node, bias = product, other
        if node.op_type != "MatMul":
            return None
        weight = self._constant(node.input[1])
        return None if weight is None else self._tap(node.input[0], name, weight.T, bias)

    def _maker(self, name: str) -> Any:
        """Return the node that computes a tensor; casts after it are passed by, which Keras writes everywhere."""
        node = self._producer.get(name)
        while node is not None and node.op_type in ("Identity", "Cast"):
            node = self._producer.get(node.input[0])
        return node

    def _gemm(self, node: Any, name: str) -> Tap | None:
        options = {attribute.name: self._onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        weight = self._constant(node.input[1])
        bias = self._constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        bias_is_fixed = bias is not None or len(node.input) < 3 or not node.input[2]
        if weight is None or options.get("transA", 0) or not bias_is_fixed:
            return None
        scaled = weight * np.float32(options.get("alpha", 1.0))
        shifted = None if bias is None else bias * np.float32(options.get("beta", 1.0))
        return self._tap(node.input[0], name, scaled if options.get("transB", 0) else scaled.T, shifted)

    def _tap(self, features: str, logits: str, weight: Array, bias: Array | None) -> Tap | None:
        if weight.ndim != 2:
            return None
        if bias is not None:
            bias = np.broadcast_to(bias.reshape(-1), (len(weight),))
        return Tap(features, logits, make_head(weight, bias))

    def _linear_classifier(self, node: Any) -> Tap:
        """Read scikit-learn's linear classifier as its converter writes it: the node keeps the logits to itself."""
        options = {attribute.name: self._onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        bias = np.asarray(options["intercepts"], np.float32)
        weight = np.asarray(options["coefficients"], np.float32).reshape(len(bias), -1)
        if len(bias) == 2 and np.array_equal(weight[0], -weight[1]) and bias[0] == -bias[1]:
            weight, bias = weight[1:], bias[1:]  # both signs of one logit
        return Tap(node.input[0], None, make_head(weight, bias))

    def _constant(self, name: str) -> Array | None:
        """Return a tensor that does not depend on the input."""
        if name in self._weights:
            return np.asarray(self._onnx.numpy_helper.to_array(self._weights[name]))
        node = self._producer.get(name)
        if node is None:
            return None
        if node.op_type == "Constant":
            return np.asarray(self._onnx.numpy_helper.to_array(node.attribute[0].t))
        if node.op_type in ("Identity", "Transpose"):
            value = self._constant(node.input[0])
            if value is None or node.op_type == "Identity":
                return value
            order = [list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"]
            return np.transpose(value, order[0] if order else None)
        return None


def make_head(weight: Array, bias: Array | None) -> Head:
    """Make a head; one row for two classes becomes two, -w/2 and w/2, which have the same probabilities.

    Examples
    --------
    >>> make_head(np.ones((1, 3)), np.zeros(1))
    Head(2 classes, 3 features)
    """
    if len(weight) > 1:
        return Head(weight, bias)
    both = np.concatenate([-weight, weight]) / 2
    return Head(both, None if bias is None else np.concatenate([-bias, bias]) / 2)


def import_onnx() -> tuple[Any, Any]:
    """Import onnx and onnxruntime, or say how to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise DependencyError("Network.onnx needs onnx and onnxruntime: pip install offmap[onnx]") from error
    return onnx, onnxruntime
