"""Running a PyTorch model: tapping what goes into its head or comes out of a layer, and leaving nothing behind."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn

from offmap.activations import Head
from offmap.errors import InputError
from offmap.extra_passes import Layer, Request
from offmap.network import extra_passes
from offmap.network.backend import Backend
from offmap.network.batches import is_array, update_digest
from offmap.network.hooks import Hook, hooked, replace_output
from offmap.network.linear_calls import FunctionalHead, LinearCalls, two_sided
from offmap.network.model_outputs import (
    Inputs,
    Output,
    call_model,
    copy_to_numpy,
    explain_wrong_shape,
    find_input_rows,
    find_logits,
    is_linear_head,
    unwrap_model,
)
from offmap.network.onnx_graph import make_head
from offmap.network.preserve import preserve_rng, preserve_state
from offmap.network.reductions import pool_positions, reduce_output
from offmap.network.torch_head import find_head
from offmap.typing import Array

_PROBE = 4


class TorchBackend(Backend):
    """A PyTorch model and the layer to tap, see `offmap.Network`.

    What is tapped is settled by the first inputs, and is one of four:

    - a linear module whose output is the model's: features are its input, it is the head;
    - the same with a softmax after it: the logits are the module's own output;
    - a product with a matrix that no module makes (tied and cosine heads): read off the operands of each pass;
    - a layer that the user named: its output, or with ``head=`` its input, without a linear head.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str | None,
        ensemble: Sequence[nn.Module],
        head: str | None = None,
        output: Output = None,
    ) -> None:
        if layer is not None and head is not None:
            raise InputError(f"layer={layer!r}, head={head!r}: name one of them")
        self._given = model
        self.model, self.ensemble = unwrap_model(model), [unwrap_model(member) for member in ensemble]
        self.layer = layer if head is None else head
        self.output = output
        self.taps_input = head is not None
        self._tap: str | None = None
        self._is_head = False
        self._softmax_follows = False
        self.functional_head: FunctionalHead | None = None
        self._last_functional_head: Head | None = None

    def __repr__(self) -> str:
        layer = "" if self.layer is None else f", {'head' if self.taps_input else 'layer'}={self.layer!r}"
        more = f", ensemble of {len(self.ensemble) + 1}" if self.ensemble else ""
        return f"Network({type(self._given).__name__}{layer}{more})"

    @property
    def torch_model(self) -> nn.Module:
        """The model as it was given."""
        return self._given

    @property
    def models(self) -> list[nn.Module]:
        """The model, then the other members of the ensemble."""
        return [self.model, *self.ensemble]

    @property
    def tap(self) -> str | None:
        """The tapped layer; `None` before the first inputs."""
        return self._tap

    @property
    def has_head(self) -> bool:
        """Whether the tapped layer is a linear head."""
        return self._is_head

    def head(self) -> Head | None:
        """Return a copy of the head as it is now; `None` when features do not come from before a linear head."""
        if not self._is_head:
            return None
        if self.functional_head is not None:
            return self._last_functional_head
        linear = self.module(self._tap or "")
        bias = linear.bias
        return make_head(copy_to_numpy(linear.weight), None if bias is None else copy_to_numpy(bias))

    def layers(self) -> dict[str, str]:
        """Return every named layer and its kind."""
        return {name: type(module).__name__ for name, module in self.model.named_modules() if name}

    def fingerprint(self) -> str:
        """Return a checksum of all weights of all members."""
        self._check_dense()
        digest = hashlib.blake2b(digest_size=16)
        for member in self.models:
            for name, value in member.state_dict().items():
                if isinstance(value, torch.Tensor):
                    update_digest(digest, name, value)
        return digest.hexdigest()

    def session(self, device: str | None) -> AbstractContextManager[None]:
        """Return a context in which the models are in evaluation mode; afterwards they are as they were."""
        self._check_dense()
        return preserve_state(self.models, None if device is None else torch.device(device))

    def to(self, device: str) -> None:
        """Move the models."""
        for member in self.models:
            member.to(torch.device(device))

    def _check_dense(self) -> None:
        for member in self.models:
            for name, value in member.named_parameters():
                if value.layout != torch.strided:
                    raise InputError(
                        f"{self}: the weights {name!r} are of the layout {value.layout}; offmap reads dense weights, "
                        "so give a model whose weights were made dense with to_dense()"
                    )

    def run(self, inputs: Any, requests: Sequence[Request], start: int) -> dict[str, Array]:
        """Run one batch and return features, logits and what is asked, by the names of the arrays on disk.

        Every batch starts from a random state of its own, made of its place `start`: a model that draws
        numbers gives the same answer in a resumed run.

        Parameters
        ----------
        inputs : Tensor or mapping of str to Tensor
            One batch.
        requests : sequence of Request
            Extra passes and layers.
        start : int
            Place of the first input in the data.

        Returns
        -------
        dict of str to ndarray
            The arrays by name, as float32.
        """
        inputs = self.prepare_inputs(inputs)
        if self._tap is None:
            with preserve_rng(seed=start), torch.no_grad(), explain_wrong_shape(self, inputs):
                self._find(inputs)
        with preserve_rng(seed=start), torch.no_grad():
            kept: dict[str, torch.Tensor] = {}
            hooks = [self.keep_layer(request, kept) for request in requests if isinstance(request, Layer)]
            features, logits = self.forward(inputs, hooks)
            found = {"features": features, "logits": logits}
            for request in requests:
                if isinstance(request, Layer):
                    if request.key not in kept:
                        raise InputError(f"{request.key}: the layer {request.name!r} did not run on these inputs")
                    extra = {request.key: kept[request.key]}
                else:
                    extra = extra_passes.run_extra_pass(self, request, inputs, start)
                found |= {f"extra.{name}": value for name, value in extra.items()}
        return {name: copy_to_numpy(value) for name, value in found.items()}

    def forward(self, inputs: Inputs, hooks: Sequence[tuple[str, Hook]] = ()) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one pass with some layers' outputs replaced and return features and logits, still in the graph.

        Parameters
        ----------
        inputs : Tensor or mapping of str to Tensor
            One batch.
        hooks : sequence of tuple of str, callable, default=()
            Layers by name, and what replaces their outputs.

        Returns
        -------
        tuple of 2 Tensor
            Features and logits.
        """
        if self.functional_head is not None:
            return self._forward_functional(self.functional_head, inputs, hooks)
        calls: list[tuple[Any, Any]] = []

        def see(given: Any, output: Any) -> None:
            # pooled at once: the next layer may work in place
            kept = given if self.taps_input else output
            calls.append((given, output if self._is_head else pool_positions(_tensor(kept, self._tap))))

        with ExitStack() as stack:
            for name, hook in hooks:
                stack.enter_context(hooked(self.module(name), replace_output(hook)))
            stack.enter_context(hooked(self.module(self._tap or ""), see))
            logits = self._answer(inputs)
        if not calls:
            raise InputError(f"the tapped layer {self._tap!r} did not run on these inputs")
        if not self._is_head:
            return calls[-1][1], two_sided(logits)
        for given, answered in reversed(calls):
            rows = None if self._softmax_follows else find_input_rows(given, answered, logits)
            if rows is not None:
                return rows, two_sided(logits)
        given, answered = calls[-1]
        if (self.layer is not None or self._softmax_follows) and given.ndim == 2:
            return given, two_sided(answered)  # a head's own answer counts: what follows it may be a softmax
        raise InputError(
            f"the linear layer {self._tap!r} gave the logits of the first inputs, but not of these; "
            f"pass Network(model, layer='<name>') to choose what is tapped"
        )

    def _forward_functional(
        self, function: FunctionalHead, inputs: Inputs, hooks: Sequence[tuple[str, Hook]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with ExitStack() as stack:
            for name, hook in hooks:
                stack.enter_context(hooked(self.module(name), replace_output(hook)))
            noted = stack.enter_context(LinearCalls())
            logits = self._answer(inputs)
        features, weight, bias = function.read(noted.calls)
        self._last_functional_head = make_head(copy_to_numpy(weight), copy_to_numpy(bias))
        return features, two_sided(logits)

    def _answer(self, inputs: Inputs) -> torch.Tensor:
        return find_logits(call_model(self.model, inputs), self.output)

    def logits(self, model: nn.Module, inputs: Inputs) -> torch.Tensor:
        """Run another member of the ensemble.

        Parameters
        ----------
        model : nn.Module
            The member.
        inputs : Tensor or mapping of str to Tensor
            One batch.

        Returns
        -------
        Tensor of shape (n, c)
            Its logits.
        """
        return two_sided(find_logits(call_model(model, inputs), self.output))

    def module(self, name: str) -> Any:
        """Return a layer by name."""
        try:
            return self.model.get_submodule(name)
        except AttributeError:
            names = list(self.layers())
            near = difflib.get_close_matches(name, names, n=4, cutoff=0.3) or names[-4:]
            raise InputError(
                f"layer={name!r}: the model has no such layer; close are {', '.join(map(repr, near))}, "
                "and net.layers() lists all"
            ) from None

    def prepare_inputs(self, inputs: Any) -> Inputs:
        """Bring inputs to the model's device, floating-point numbers to its precision."""
        if isinstance(inputs, Mapping):
            return {name: self._placed(value) if is_array(value) else value for name, value in inputs.items()}
        return self._placed(inputs)

    def _placed(self, value: Any) -> torch.Tensor:
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        like = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if like is None:
            return tensor
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)

    def keep_layer(self, request: Layer, kept: dict[str, torch.Tensor]) -> tuple[str, Hook]:
        """Return a hook that writes what a layer says into `kept`, under the key of the request.

        Parameters
        ----------
        request : Layer
            The layer, and how its output is reduced.
        kept : dict of str to Tensor
            Filled when the layer runs.

        Returns
        -------
        tuple of str, callable
            For `forward`.
        """

        def keep(output: Any) -> None:
            kept[request.key] = reduce_output(_tensor(output, request.name), request)

        return request.name, keep

    def _find(self, inputs: Inputs) -> None:
        """Settle what is tapped by running a few inputs."""
        few = _first(inputs, _PROBE)
        if self.layer is None:
            found = find_head(self.model, lambda: self._answer(few))
            self.functional_head, self._last_functional_head = found.function, found.head
            self._tap, self._is_head, self._softmax_follows = found.name, True, found.softmax_follows
            return
        module = self.module(self.layer)
        classes = self._answer(few).shape[1]
        self._is_head = isinstance(module, nn.Linear) and module.out_features == classes
        self._tap = self.layer
        try:
            both = self.forward(few)
            if self._is_head and not is_linear_head(both[0], both[1], module):
                raise InputError(
                    f"layer={self.layer!r}: its output is not its input @ weight.T + bias, so it cannot "
                    "serve as a head; name a layer before it"
                )
        except BaseException:
            self._tap = None
            raise


def _tensor(output: Any, name: str | None) -> torch.Tensor:
    found = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(found, torch.Tensor) or found.ndim < 2:
        raise InputError(
            f"layer {name!r} gives {type(output).__name__}; a layer with one tensor row per input is needed"
        )
    return found


def _first(inputs: Inputs, count: int) -> Inputs:
    if isinstance(inputs, Mapping):
        return {name: value[:count] if is_array(value) and value.ndim else value for name, value in inputs.items()}
    return inputs[:count]
