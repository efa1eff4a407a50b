"""`Network`: a trained classifier, and the calls that turn inputs into `Activations`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from offmap.activations import Activations, Head
from offmap.errors import InputError, MissingError
from offmap.extra_passes import Requirements
from offmap.network.backend import Backend
from offmap.network.batches import check_batch_size, read_batches
from offmap.network.extract import collect_activations, extract, run_batch
from offmap.typing import Array

if TYPE_CHECKING:
    from torch import nn

_FLOAT32 = np.dtype("float32")


class Network:
    """Any trained PyTorch classifier; what goes into its last linear layer is tapped, the model is left as it
    was.

    Modes, hooks, gradients, buffers, devices and the global random states are the same before and after every
    call, also when it fails.

    Parameters
    ----------
    model : nn.Module or Backend
        Any ``nn.Module`` that returns logits: a tensor, a tuple that starts with it, or something with
        ``logits``.
    layer : str or None, default=None
        Where to tap, when the model does not end in a linear layer or another layer is wanted. A linear layer
        with as many outputs as there are classes is taken as the head, and what goes into it is tapped. Of
        any other layer the output is tapped, averaged over positions; then there is no head. `layers` lists
        the names.
    ensemble : sequence of nn.Module, default=()
        Other models for the same inputs and classes, for methods that ask all of them.
    head : str or None, default=None
        The layer that is the head, instead of `layer`: what goes into it is tapped, whatever kind of layer it is, such
        as two linear layers with an activation between them.
    output : str, int, callable or None, default=None
        Where the logits are in what the model returns: a key or attribute, a place in a tuple, or a function.

    Notes
    -----
    Without `layer` and `head` the last product with a matrix that gives the logits is the head: a linear layer, a
    1×1 convolution before averaging, tied weights, cosine similarities times a factor, each also before a softmax. A
    model with one logit for two classes is read as two logits, -z/2 and z/2, which have the same probabilities.

    Examples
    --------
    >>> import torch
    >>> from offmap.network import Network
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = Network(model)
    >>> net(torch.zeros(5, 4))
    Activations(5 inputs, 8 features, 3 classes)
    >>> net.head
    Head(3 classes, 8 features)
    >>> print(net)
    Network(Sequential), 8 features from before '2', 3 classes
    """

    def __init__(
        self,
        model: nn.Module | Backend,
        layer: str | None = None,
        ensemble: Sequence[nn.Module] = (),
        head: str | None = None,
        output: str | int | Callable[[Any], Any] | None = None,
    ) -> None:
        if not isinstance(model, Backend):
            for member in (model, *ensemble):
                if not hasattr(member, "named_modules"):
                    raise InputError(
                        f"Network({type(member).__name__}): a torch.nn.Module is needed; for an ONNX file use "
                        "Network.onnx(path), for arrays use offmap.Activations(features, ...)"
                    )
            from offmap.network.torch_backend import TorchBackend

            model = TorchBackend(model, layer, ensemble, head, output)
        elif layer is not None or ensemble or head is not None or output is not None:
            raise InputError(f"Network({type(model).__name__}): a backend has a layer and an ensemble of its own")
        self.backend = model

    @classmethod
    def onnx(cls, path: str | os.PathLike[str], layer: str | None = None, output: str | None = None) -> Network:
        """Make a network from a classifier in an ONNX file, run by ONNX Runtime (``pip install offmap[onnx]``).

        Parameters
        ----------
        path : path
            The file; weights beside it in an external data file are found.
        layer : str, optional
            The name of a node or tensor to tap, as for a model; by default the input of the last Gemm or
            MatMul.
        output : str, optional
            The output of the graph that holds the logits; by default the one called logits, or the first with numbers.

        Examples
        --------
        >>> from offmap.network import Network
        >>> Network.onnx("model.onnx")  # nothing is read before the first inputs
        Network.onnx('model.onnx')
        """
        from offmap.network.onnx_backend import OnnxBackend

        return Network(OnnxBackend(path, layer, output))

    def __repr__(self) -> str:
        return repr(self.backend)

    def __str__(self) -> str:
        """Say what is tapped as well, once the first inputs have shown it."""
        tap, head = self.backend.tap, self.backend.head()
        if tap is None:
            return repr(self)
        if head is None:
            return f"{self!r}, features from the output of {tap!r}, no linear head"
        return f"{self!r}, {head.width} features from before {tap!r}, {head.n_classes} classes"

    @property
    def layer(self) -> str | None:
        """The layer that was named to be tapped; `None` for the usual one."""
        return self.backend.layer

    @property
    def model(self) -> nn.Module | None:
        """The PyTorch module that is run; `None` for networks of another kind."""
        return self.backend.torch_model

    @property
    def head(self) -> Head | None:
        """The last linear layer, as it is now; `None` when the tapped layer is not before one."""
        head = self.backend.head()
        if head is None and self.backend.tap is None:
            raise MissingError("net.head: the head is found by running the model; call net(x) on some inputs first")
        return head

    def layers(self) -> dict[str, str]:
        """Return the names that can be tapped, and what each is.

        Examples
        --------
        >>> import torch
        >>> from offmap.network import Network
        >>> Network(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())).layers()
        {'0': 'Linear', '1': 'ReLU'}
        """
        return self.backend.layers()

    def fingerprint(self) -> str:
        """Return a checksum of the weights, by which a folder of activations knows its network."""
        return self.backend.fingerprint()

    def to(self, device: str) -> Network:
        """Move the network to a device, where it then stays, as ``nn.Module.to`` does.

        Parameters
        ----------
        device : str
            Such as ``"cuda"``.

        Returns
        -------
        Network
            Itself.
        """
        self.backend.to(device)
        return self

    def __call__(self, x: Any, requirements: Requirements | None = None, device: str | None = None) -> Activations:
        """Activations of one batch: an array, a tensor, or a mapping of model arguments.

        Pass ``requirements=detector.requirements`` for a detector that reads more than features and logits.
        """
        (batch,) = read_batches([(x,)] if not isinstance(x, Mapping) else [x])
        with self._kept_rng(), self.backend.session(device):
            part = run_batch(self.backend, batch, requirements or Requirements(), _FLOAT32)
            return collect_activations(self.backend, [part])

    def extract(
        self,
        loader: Any,
        requirements: Requirements | None = None,
        to: str | os.PathLike[str] | None = None,
        dtype: str = "float32",
        labels: Any = None,
        batch_size: int = 128,
        progress: bool | None = None,
        device: str | None = None,
    ) -> Activations:
        """Run the network once over a set of inputs.

        Parameters
        ----------
        loader : array-like or iterable of batches
            A ``DataLoader`` or any iterable of batches: x, (x, y), or a mapping of model arguments which may
            hold ``"labels"``. Or all inputs as one array, cut into batches of `batch_size` here.
        requirements : Requirements or None, default=None
            What detectors ask for, ``detector.requirements``; several are united with ``|``. Features and logits are
            always kept.
        to : str, path or None, default=None
            A folder to write to as it goes, in bounded memory. A run that was cut short is resumed by the
            same call: finished batches are not computed again, but their inputs are compared with those the
            folder was made from. A finished folder is verified and reused. Without `to` everything stays in
            memory.
        dtype : str, default="float32"
            ``"float32"`` or ``"float16"``, for all arrays but the labels.
        labels : array-like or None, default=None
            One class index per input, in place of the loader's own.
        batch_size : int, default=128
            Only for one array of inputs; a loader has its own.
        progress : bool or None, default=None
            `False` for no progress: a bar on a terminal, elsewhere a line every half minute.
        device : str or None, default=None
            Where to run, e.g. ``"cuda"``; the model returns to where it was. By default where the model is.

        Returns
        -------
        Activations
            In memory, or memory-mapped from `to`.

        Examples
        --------
        >>> import torch
        >>> from offmap.network import Network
        >>> net = Network(torch.nn.Linear(4, 3))
        >>> net.extract([(torch.zeros(5, 4), torch.arange(5) % 3), (torch.ones(2, 4), torch.tensor([0, 1]))])
        Activations(7 inputs, 4 features, 3 classes, labels)
        """
        with self._kept_rng():
            return extract(
                self.backend, loader, requirements or Requirements(), to, dtype, labels, batch_size, progress, device
            )

    def noise(
        self,
        n: int,
        shape: Sequence[int],
        seed: int = 0,
        requirements: Requirements | None = None,
        batch_size: int = 128,
        device: str | None = None,
    ) -> Activations:
        """Run the network on `n` inputs of Gaussian noise N(0, 1), outliers for choosing hyperparameters.

        Parameters
        ----------
        n : int
            Number of inputs.
        shape : sequence of int
            Shape of one input.
        seed : int, default=0
            Seed of the noise.
        requirements : Requirements or None, default=None
            What a detector reads, apart from labels.
        batch_size : int, default=128
            Inputs per batch.
        device : str or None, default=None
            Where to compute.

        Returns
        -------
        Activations
            Without labels.

        Examples
        --------
        >>> import torch
        >>> from offmap.network import Network
        >>> Network(torch.nn.Linear(4, 3)).noise(10, (4,))
        Activations(10 inputs, 4 features, 3 classes)
        """
        if n < 1:
            raise InputError(f"noise({n}): at least one input is needed")
        inputs = _gaussian(n, tuple(shape), seed, check_batch_size(batch_size))
        unlabelled = None if requirements is None else replace(requirements, labels=False)  # noise has none
        return self.extract(inputs, unlabelled, progress=False, device=device)

    def _kept_rng(self) -> Any:
        from offmap.network.preserve import preserve_rng

        return preserve_rng()


def _gaussian(n: int, shape: tuple[int, ...], seed: int, batch_size: int) -> Iterator[Array]:
    """Batches of one stream of numbers, the same however it is cut."""
    generator = np.random.default_rng(seed)
    for start in range(0, n, batch_size):
        yield generator.standard_normal((min(batch_size, n - start), *shape), dtype=np.float32)
