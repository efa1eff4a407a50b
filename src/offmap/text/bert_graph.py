"""A BERT encoder as an ONNX graph, built from its weights: ONNX Runtime runs it without torch or transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offmap.errors import InputError
from offmap.typing import Array

OPSET = 20  # the first with Gelu
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT = "last_hidden_state"
_MASKED = -1e9


def build_bert_graph(config: Mapping[str, Any], weights: Mapping[str, Array]) -> Any:
    """Build the graph of a BERT encoder (Devlin et al. 2019): token ids in, one vector per token out.

    Parameters
    ----------
    config : mapping
        ``config.json`` as transformers writes it: `num_hidden_layers`, `num_attention_heads`, `hidden_size`,
        `layer_norm_eps`, `hidden_act`, `model_type`.
    weights : mapping of str to array
        By the names that transformers gives them, such as ``encoder.layer.0.attention.self.query.weight``; they keep
        these names in the graph.

    Returns
    -------
    onnx.ModelProto
        Inputs ``input_ids``, ``attention_mask`` and ``token_type_ids``, texts × tokens; output
        ``last_hidden_state``, texts × tokens × columns.

    Raises
    ------
    InputError
        If the network is not such an encoder.
    """
    if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
        raise InputError(
            f"an encoder of the type {config.get('model_type')!r} with {config.get('hidden_act')!r}: of weights only "
            "'bert' with 'gelu' is built here; give an ONNX file"
        )
    return _Graph(config, weights).build()


class _Graph:
    """The nodes so far, and names for what flows between them."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        import onnx

        self.onnx, self.config, self.weights = onnx, config, weights
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.heads = int(config["num_attention_heads"])
        self.width = int(config["hidden_size"])
        self.epsilon = float(config.get("layer_norm_eps", 1e-12))

    def build(self) -> Any:
        helper, kind = self.onnx.helper, self.onnx.TensorProto
        self._mask()
        rows = self._embeddings()
        for layer in range(int(self.config["num_hidden_layers"])):
            rows = self._layer(rows, f"encoder.layer.{layer}")
        self._add("Identity", [rows], output=OUTPUT)
        shape = ["texts", "tokens"]
        graph = helper.make_graph(
            self.nodes,
            "bert",
            [helper.make_tensor_value_info(name, kind.INT64, shape) for name in INPUTS],
            [helper.make_tensor_value_info(OUTPUT, kind.FLOAT, [*shape, self.width])],
            [self.onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    def _add(self, op: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        name = output or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def _weight(self, name: str) -> str:
        if name not in self.weights:
            raise InputError(f"the weights of the encoder hold no {name!r}; they are not those of a BERT encoder")
        return self._constant(name, np.asarray(self.weights[name], np.float32))

    def _mask(self) -> None:
        """Return what is added to the scores of attention: nothing for tokens, a large negative number for padding."""
        given = self._add("Cast", ["attention_mask"], to=self.onnx.TensorProto.FLOAT)
        absent = self._add("Sub", [self._constant("one", np.float32(1)), given])
        scaled = self._add("Mul", [absent, self._constant("masked", np.float32(_MASKED))])
        self._add("Unsqueeze", [scaled, self._constant("axes", np.array([1, 2], np.int64))], output="mask")

    def _embeddings(self) -> str:
        length = self._add("Shape", ["input_ids"], start=1, end=2)
        zero = self._constant("zero", np.array([0], np.int64))
        positions = self._add("Slice", [self._weight("embeddings.position_embeddings.weight"), zero, length, zero])
        words = self._add("Gather", [self._weight("embeddings.word_embeddings.weight"), "input_ids"])
        types = self._add("Gather", [self._weight("embeddings.token_type_embeddings.weight"), "token_type_ids"])
        return self._norm(self._add("Add", [self._add("Add", [words, types]), positions]), "embeddings.LayerNorm")

    def _layer(self, rows: str, name: str) -> str:
        attended = self._attention(rows, f"{name}.attention.self")
        attended = self._linear(attended, f"{name}.attention.output.dense")
        middle = self._norm(self._add("Add", [attended, rows]), f"{name}.attention.output.LayerNorm")
        wide = self._add("Gelu", [self._linear(middle, f"{name}.intermediate.dense")])
        return self._norm(
            self._add("Add", [self._linear(wide, f"{name}.output.dense"), middle]), f"{name}.output.LayerNorm"
        )

    def _attention(self, rows: str, name: str) -> str:
        size = self.width // self.heads
        split = self._constant("split", np.array([0, 0, self.heads, size], np.int64))
        parts = {
            part: self._add(
                "Transpose",
                [self._add("Reshape", [self._linear(rows, f"{name}.{part}"), split])],
                perm=[0, 2, 3, 1] if part == "key" else [0, 2, 1, 3],
            )
            for part in ("query", "key", "value")
        }
        scores = self._add("MatMul", [parts["query"], parts["key"]])
        scaled = self._add("Mul", [scores, self._constant("scale", np.float32(size**-0.5))])
        weights = self._add("Softmax", [self._add("Add", [scaled, "mask"])], axis=-1)
        mixed = self._add("Transpose", [self._add("MatMul", [weights, parts["value"]])], perm=[0, 2, 1, 3])
        return self._add("Reshape", [mixed, self._constant("join", np.array([0, 0, self.width], np.int64))])

    def _linear(self, rows: str, name: str) -> str:
        """``rows @ weight.T + bias``; the weight stands in the graph as transformers keeps it."""
        weight = self._add("Transpose", [self._weight(f"{name}.weight")], perm=[1, 0])  # folded when it is loaded
        return self._add("Add", [self._add("MatMul", [rows, weight]), self._weight(f"{name}.bias")])

    def _norm(self, rows: str, name: str) -> str:
        parts = [rows, self._weight(f"{name}.weight"), self._weight(f"{name}.bias")]
        return self._add("LayerNormalization", parts, axis=-1, epsilon=self.epsilon)
