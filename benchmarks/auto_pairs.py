"""Networks with known inputs and the unknown sets that they meet, for `auto.py`: pictures, sentences, tables.

What ``auto`` rests on (core, families, weights, the combination, when distances take over) was decided on networks in
`DEVELOPMENT`. Those in `REPORT` were measured once, after it was settled. Development networks that were in the report
of an earlier rule count as development since what that one lost on them was a reason for the next; so do some of those
in `auto_public.py`. More small networks of development are in `auto_small.py`.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.neural_network import MLPClassifier

from offmap import Activations, Head
from offmap.bench.cache import locate_cache
from offmap.data import tiles
from offmap.detection.pseudo_unknowns import fit_head
from offmap.models.classify import train_classifier
from offmap.models.cnn import CNN
from offmap.models.densenet import DenseNet

DATA = Path(os.environ.get("OFFMAP_DATA", "."))
FASHION = Path("/usr/share/datasets/fashion-mnist")
KNOWN, TEST, UNKNOWN = 2000, 1000, 700  # at most so many inputs of each kind
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

Array = Any


@dataclass(frozen=True)
class World:
    """Activations of known inputs, to fit on and to test with, and of unknown sets by name."""

    fit: Activations
    test: Activations
    unknown: Mapping[str, Activations]


def generator(*key: int) -> np.random.Generator:
    """A generator of its own for every purpose."""
    return np.random.default_rng([0, *key])


def sample(count: int, limit: int, *key: int) -> Array:
    """At most `limit` of `count` places, in order."""
    return np.sort(generator(*key).permutation(count)[:limit])


def world(fit: Activations, test: Activations, unknown: Mapping[str, Activations]) -> World:
    """The same with at most so many inputs of each kind."""
    cut = {name: acts[sample(len(acts), UNKNOWN, 3)] for name, acts in unknown.items()}
    return World(fit[sample(len(fit), KNOWN, 1)], test[sample(len(test), TEST, 2)], cut)


def stored(name: str) -> dict[str, Array]:
    """The arrays of a stored file."""
    with np.load(DATA / name) as file:
        return {key: file[key] for key in file.files}


def from_classes(
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    known: Iterable[int],
    unknown: Mapping[str, Array] | None = None,
) -> World:
    """Embeddings of some classes with a linear head trained on them, against the other classes and further sets."""
    kept = np.sort(np.asarray(list(known)))
    inside, tested = np.isin(train[1], kept), np.isin(test[1], kept)
    rows = sample(int(inside.sum()), KNOWN, 11)
    features = train[0][inside][rows].astype(np.float32)
    labels = np.searchsorted(kept, train[1][inside][rows])
    head = fit_head(features, labels, len(kept), steps=200)
    acts = partial(Activations, head=head)
    sets = {name: acts(array.astype(np.float32)) for name, array in (unknown or {}).items()}
    if not tested.all():
        sets["other classes"] = acts(test[0][~tested].astype(np.float32))
    held_out = acts(test[0][tested].astype(np.float32), labels=np.searchsorted(kept, test[1][tested]))
    return world(acts(features, labels=labels), held_out, sets)


def divided(features: Array, labels: Array, key: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Three fifths to train on, the rest to test with."""
    order = generator(key).permutation(len(labels))
    first, rest = order[: len(order) * 6 // 10], order[len(order) * 6 // 10 :]
    return (features[first], labels[first]), (features[rest], labels[rest])


def densenet(name: str, other: str) -> World:
    """The DICE authors' DenseNet against street numbers, textures and the other CIFAR."""
    model = DenseNet.load(DATA / f"weights/densenet100bc_{name}.safetensors").eval()
    head = Head(model.fc.weight.detach().numpy(), model.fc.bias.detach().numpy())

    def acts(part: str, labelled: bool = False) -> Activations:
        arrays = stored(f"features/{name}-densenet__{part}.npz")
        return Activations(arrays["features"].astype(np.float32), head, labels=arrays["labels"] if labelled else None)

    further = Activations(_densenet_features(model, f"{name}-{other}", f"{other}_test").astype(np.float32), head)
    sets = {"SVHN": acts("svhn_test10k"), "textures": acts("dtd10"), other: further}
    return world(acts(f"{name}_train10k", True), acts(f"{name}_test", True), sets)


def _densenet_features(model: DenseNet, key: str, pictures: str) -> Array:
    """Features of pictures that are not stored; computed once and kept in the cache folder."""
    file = locate_cache() / f"auto-{key}.npy"
    if file.exists():
        return np.load(file)
    inputs = tiles(pictures, DATA).inputs
    chosen = inputs[sample(len(inputs), UNKNOWN, 7)].astype(np.float32) / 255
    batch = torch.from_numpy(((chosen - MEAN) / STD).astype(np.float32)).permute(0, 3, 1, 2)
    found: list[Array] = []
    hook = model.fc.register_forward_pre_hook(lambda module, given: found.append(given[0].numpy()))
    with torch.no_grad():
        for start in range(0, len(batch), 100):
            model(batch[start : start + 100])
    hook.remove()
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, np.concatenate(found))
    return np.concatenate(found)


def clinc(kind: str) -> World:
    """Intents of CLINC150 against out-of-scope queries: all, half of them, or five queries of each."""
    arrays = stored("text/clinc150_minilm.npz")
    train = arrays["train_features"], arrays["train_labels"]
    if kind == "few":
        rows = np.concatenate([np.flatnonzero(train[1] == label)[:5] for label in range(150)])
        train = train[0][rows], train[1][rows]
    known = generator(5).permutation(150)[:75] if kind == "half" else range(150)
    test = arrays["test_features"], arrays["test_labels"]
    return from_classes(train, test, known, {"out of scope": arrays["oos_test_features"]})


def banking(share: int) -> World:
    """A share of the intents of BANKING77 against the others and CLINC150's out-of-scope queries."""
    arrays = stored("text/banking77_minilm.npz")
    known = generator(6, share).permutation(77)[: round(77 * share / 100)]
    far = stored("text/clinc150_minilm.npz")["oos_test_features"]
    train = arrays["train_features"], arrays["train_labels"]
    return from_classes(train, (arrays["test_features"], arrays["test_labels"]), known, {"out of scope": far})


def resnet(name: str) -> dict[str, Array]:
    """Stored features of the ResNet-50."""
    return stored(f"features/resnet50__{name}.npz")


def imagenet() -> World:
    """800 ImageNet classes, two or three pictures each to fit on, against 200 others, textures and Caltech-101."""
    arrays, layer = resnet("imagenet_val5k"), stored("weights/resnet50_imagenet_head.npz")
    weight = layer["weight"] if len(layer["weight"]) == 1000 else layer["weight"].T
    classes = np.array([int(name) for name in arrays["classes"]])[arrays["labels"]]
    kept = np.sort(generator(8).permutation(1000)[:800])
    head = Head(weight[kept], layer["bias"][kept])
    known = np.isin(classes, kept)
    order = generator(9).permutation(np.flatnonzero(known))
    acts = partial(Activations, head=head)

    def labelled(rows: Array) -> Activations:
        return acts(arrays["features"][rows].astype(np.float32), labels=np.searchsorted(kept, classes[rows]))

    sets = {
        "textures": acts(resnet("dtd10")["features"].astype(np.float32)),
        "Caltech-101": acts(resnet("caltech101")["features"].astype(np.float32)),
        "other classes": acts(arrays["features"][~known].astype(np.float32)),
    }
    half = len(order) // 2
    return world(labelled(order[:half]), labelled(order[half:]), sets)


def on_resnet(name: str, count: int, further: Mapping[str, str]) -> World:
    """Some classes of a set on ResNet-50 features with a linear head, against its other classes and further sets."""
    arrays = resnet(name)
    train, test = divided(arrays["features"], arrays["labels"], 21)
    known = generator(22).permutation(len(arrays["classes"]))[:count]
    return from_classes(train, test, known, {word: resnet(file)["features"] for word, file in further.items()})


def on_mlp(features: Array, labels: Array, known: Iterable[int], widths: tuple[int, ...], **far: Array) -> World:
    """A small multilayer perceptron trained on some classes of a table, against the others and further rows."""
    train, test = divided(features, labels, 31)
    kept = np.sort(np.asarray(list(known)))
    inside, tested = np.isin(train[1], kept), np.isin(test[1], kept)
    mean, spread = train[0][inside].mean(axis=0), train[0][inside].std(axis=0) + 1e-9
    net = MLPClassifier(widths, max_iter=400, random_state=0)
    net.fit((train[0][inside] - mean) / spread, np.searchsorted(kept, train[1][inside]))
    weight, bias = net.coefs_[-1].T, net.intercepts_[-1]
    if len(weight) == 1:  # two classes have one logit
        weight, bias = np.vstack([-weight / 2, weight / 2]), np.array([-bias[0] / 2, bias[0] / 2])

    def acts(rows: Array, classes: Array | None = None) -> Activations:
        hidden = (rows - mean) / spread
        for matrix, offset in zip(net.coefs_[:-1], net.intercepts_[:-1], strict=True):
            hidden = np.maximum(hidden @ matrix + offset, 0)
        return Activations(hidden.astype(np.float32), Head(weight, bias), labels=classes)

    labels_of = partial(np.searchsorted, kept)
    sets = {"other classes": acts(test[0][~tested])} | {name: acts(rows) for name, rows in far.items()}
    fit = acts(train[0][inside], labels_of(train[1][inside]))
    return world(fit, acts(test[0][tested], labels_of(test[1][tested])), sets)


def table(features: Array, labels: Array, known: Iterable[int], labelled: bool) -> World:
    """A table as it is: features only, with labels or without, against the rows of the other classes."""
    train, test = divided(features, labels, 41)
    kept = np.sort(np.asarray(list(known)))
    inside, tested = np.isin(train[1], kept), np.isin(test[1], kept)
    classes = np.searchsorted(kept, train[1][inside]) if labelled else None
    fit = Activations(train[0][inside].astype(np.float32), labels=classes)
    far = {"other classes": Activations(test[0][~tested].astype(np.float32))}
    return world(fit, Activations(test[0][tested].astype(np.float32)), far)


def on_cnn(
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    known: Iterable[int],
    epochs: int,
    further: Mapping[str, Array],
    **shape: int,
) -> World:
    """A small convolutional network trained on some classes of pictures, against the others and further sets."""
    kept = np.sort(np.asarray(list(known)))
    inside, tested = np.isin(train[1], kept), np.isin(test[1], kept)

    def tensor(pictures: Array) -> torch.Tensor:
        scaled = torch.from_numpy(np.asarray(pictures, dtype=np.float32) / 255)
        return scaled[:, None] if scaled.ndim == 3 else scaled.permute(0, 3, 1, 2)

    model = CNN(len(kept), channels=1 if train[0].ndim == 3 else 3, **shape)
    train_classifier(model, tensor(train[0][inside]), np.searchsorted(kept, train[1][inside]), epochs=epochs)
    head = Head(model.head.weight.detach().numpy(), model.head.bias.detach().numpy())

    def acts(pictures: Array, labels: Array | None = None) -> Activations:
        with torch.no_grad():
            parts = [model.features(tensor(pictures[at : at + 200])).numpy() for at in range(0, len(pictures), 200)]
        return Activations(np.concatenate(parts), head, labels=labels)

    some, few = sample(int(inside.sum()), KNOWN, 51), sample(int(tested.sum()), TEST, 52)
    fit = acts(train[0][inside][some], np.searchsorted(kept, train[1][inside][some]))
    held_out = acts(test[0][tested][few], np.searchsorted(kept, test[1][tested][few]))
    sets = {"other classes": acts(test[0][~tested][:UNKNOWN])}
    return world(fit, held_out, sets | {name: acts(pictures[:UNKNOWN]) for name, pictures in further.items()})


def coloured(name: str) -> tuple[Array, Array]:
    """Pictures and labels of a stored set, in colour."""
    found = tiles(name, DATA)
    return np.asarray(found.inputs), np.asarray(found.labels)


def colours_on_cnn(name: str, other: str, count: int, key: int, **shape: int) -> World:
    """Some classes of small coloured pictures on a convolutional network, against others, another set and textures."""
    train, test = divided(*coloured(name), key)
    sets = {other: coloured(SETS[other])[0][::14], "textures": coloured("dtd10")[0]}
    return on_cnn(train, test, generator(key + 1).permutation(10)[:count], 8, sets, **shape)


SETS = {"SVHN": "svhn_test10k", "CIFAR-10": "cifar10_test"}


def fashion_part(part: str) -> tuple[Array, Array]:
    """Pictures and labels of Fashion-MNIST, as Debian's package holds them."""
    with gzip.open(FASHION / f"{part}-images-idx3-ubyte.gz") as file:
        pictures = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(FASHION / f"{part}-labels-idx1-ubyte.gz") as file:
        return pictures, np.frombuffer(file.read(), np.uint8, offset=8).astype(int)


def resized(pictures: Array, side: int, mode: str) -> Array:
    """Grey pictures of another size."""
    given = torch.from_numpy(np.asarray(pictures, dtype=np.float32))[:, None]
    return torch.nn.functional.interpolate(given, size=side, mode=mode)[:, 0].numpy()


def digits_as_clothes() -> Array:
    """scikit-learn's digits at the size and the range of clothes."""
    return np.pad(resized(datasets.load_digits().images / 16 * 255, 20, "bilinear"), ((0, 0), (4, 4), (4, 4)))


def grey_sample(name: str, key: int) -> Array:
    """Some grey pictures of a stored set at the size of clothes."""
    return tiles(name, DATA).inputs[sample(10000, UNKNOWN, key)].mean(axis=-1)[:, 2:30, 2:30]


def fashion() -> World:
    """Seven kinds of clothes against three others, digits and street numbers."""
    train, test = fashion_part("train"), fashion_part("t10k")
    rows = sample(len(train[1]), 12000, 53)
    known = generator(54).permutation(10)[:7]
    further = {"digits": digits_as_clothes(), "SVHN": grey_sample("svhn_test10k", 61)}
    return on_cnn((train[0][rows], train[1][rows]), test, known, 4, further)


def fewer_clothes(count: int, epochs: int, key: int, **shape: int) -> World:
    """Some kinds of clothes against the others, digits and grey pictures of CIFAR-10."""
    train, test = fashion_part("train"), fashion_part("t10k")
    rows = sample(len(train[1]), 10000, key)
    known = generator(key + 2).permutation(10)[:count]
    further = {"digits": digits_as_clothes(), "CIFAR-10": grey_sample("cifar10_test", key + 1)}
    return on_cnn((train[0][rows], train[1][rows]), test, known, epochs, further, **shape)


def clothes_as_digits() -> Array:
    """Clothes at the size and the range of scikit-learn's digits."""
    return resized(fashion_part("t10k")[0][:600], 8, "area") / 255 * 16


def digits_on_mlp(count: int, key: int, widths: tuple[int, ...]) -> World:
    """Some digits on a perceptron against the others and clothes."""
    digits = datasets.load_digits()
    known = generator(key).permutation(10)[:count]
    return on_mlp(digits.data, digits.target, known, widths, clothes=clothes_as_digits().reshape(-1, 64))


def digits_on_cnn(count: int, epochs: int, key: int, **shape: int) -> World:
    """Some digits on a convolutional network against the others and clothes."""
    digits = datasets.load_digits()
    train, test = divided(digits.images / 16 * 255, digits.target, key)
    further = {"clothes": clothes_as_digits() / 16 * 255}
    return on_cnn(train, test, generator(key + 1).permutation(10)[:count], epochs, further, **shape)


def made_table(count: int, classes: int, key: int, widths: tuple[int, ...], seed: int | None = None) -> World:
    """A made table whose columns have different scales, on a perceptron: some classes against the others."""
    features, labels = datasets.make_classification(
        6000,
        54,
        n_informative=20,
        n_redundant=10,
        n_classes=classes,
        n_clusters_per_class=2,
        class_sep=1.5,
        random_state=key if seed is None else seed,
    )
    return on_mlp(features * np.exp(generator(key).normal(size=54) * 2), labels, range(count), widths)


def street_numbers_on_cnn() -> World:
    """Seven digits of street numbers, grey, on a convolutional network against three others, CIFAR-10 and textures."""

    def grey(name: str) -> tuple[Array, Array]:
        found = tiles(name, DATA)
        return np.asarray(found.inputs, dtype=np.float32).mean(axis=-1)[:, 2:30, 2:30], found.labels

    pictures, labels = grey("svhn_test10k")
    train, test = divided(pictures, np.asarray(labels), 81)
    further = {"CIFAR-10": grey("cifar10_test")[0][:UNKNOWN], "textures": grey("dtd10")[0][:UNKNOWN]}
    return on_cnn(train, test, generator(82).permutation(10)[:7], 6, further)


def words_on_mlp() -> World:
    """Half of the intents of CLINC150 by their words, on a perceptron, against the others and out-of-scope queries."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    queries = json.loads((DATA / "text/clinc150_oos.json").read_text())
    texts, intents = (list(part) for part in zip(*queries["train"], *queries["test"], strict=True))
    weigh = TfidfVectorizer(sublinear_tf=True).fit(text for text, _ in queries["train"])
    reduce = TruncatedSVD(128, random_state=0).fit(weigh.transform(text for text, _ in queries["train"]))
    rows = reduce.transform(weigh.transform(texts))
    far = reduce.transform(weigh.transform(text for text, _ in queries["oos_test"]))
    labels = np.unique(intents, return_inverse=True)[1]
    some = sample(len(labels), 6000, 83)
    return on_mlp(rows[some], labels[some], generator(84).permutation(150)[:75], (128,), **{"out of scope": far})


def clothes_on_mlp(count: int, key: int, widths: tuple[int, ...]) -> World:
    """Some kinds of clothes on a perceptron over pixels, against the others and grey pictures of CIFAR-100."""
    pictures, labels = (part[:8000] for part in fashion_part("train"))
    rows = resized(pictures, 14, "area").reshape(-1, 196)
    far = {"CIFAR-100": resized(grey_sample("cifar100_test", 91), 14, "area").reshape(-1, 196)}
    return on_mlp(rows, labels, generator(key).permutation(10)[:count], widths, **far)


def some_intents(count: int, key: int) -> World:
    """Some intents of CLINC150 against the others, out-of-scope queries and the queries of BANKING77."""
    arrays = stored("text/clinc150_minilm.npz")
    train, test = ((arrays[f"{part}_features"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    far = {
        "out of scope": arrays["oos_test_features"],
        "BANKING77": stored("text/banking77_minilm.npz")["test_features"],
    }
    return from_classes(train, test, generator(key).permutation(150)[:count], far)


def some_bank_intents(count: int, key: int) -> World:
    """Some intents of BANKING77 against the others and the queries of CLINC150."""
    arrays = stored("text/banking77_minilm.npz")
    train, test = ((arrays[f"{part}_features"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    far = {"CLINC150": stored("text/clinc150_minilm.npz")["test_features"]}
    return from_classes(train, test, generator(key).permutation(77)[:count], far)


def photographs(count: int, key: int) -> World:
    """Some classes of Caltech-101 on ResNet-50 features, against the others, textures and ImageNet's pictures."""
    arrays = resnet("caltech101")
    train, test = divided(arrays["features"], arrays["labels"], key)
    far = {"textures": resnet("dtd10")["features"], "ImageNet": resnet("imagenet_val5k")["features"][::5]}
    return from_classes(train, test, generator(key + 1).permutation(len(arrays["classes"]))[:count], far)


def dogs() -> World:
    """80 breeds of dogs, three pictures of each, on ResNet-50 features, against 38 others, textures, Caltech-101."""
    arrays = resnet("imagenet_val5k")
    classes = np.array([int(name) for name in arrays["classes"]])[arrays["labels"]]
    breeds = range(151, 269)
    parts = [np.split(np.flatnonzero(classes == breed), [3]) for breed in breeds]
    train, test = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    other = ~np.isin(classes, breeds)
    far = {
        "textures": resnet("dtd10")["features"],
        "Caltech-101": resnet("caltech101")["features"],
        "other pictures": arrays["features"][other][::5],
    }
    known = 151 + generator(202).permutation(len(breeds))[:80]
    rows = arrays["features"]
    return from_classes((rows[train], classes[train]), (rows[test], classes[test]), known, far)


def head_on_densenet(name: str, count: int, key: int) -> World:
    """Some classes on a DenseNet's features with a head of their own, against the others, street numbers, textures."""
    arrays = {part: stored(f"features/{name}-densenet__{part}.npz") for part in (f"{name}_train10k", f"{name}_test")}
    train, test = ((found["features"], found["labels"]) for found in arrays.values())
    far = {
        word: stored(f"features/{name}-densenet__{part}.npz")["features"]
        for word, part in (("SVHN", "svhn_test10k"), ("textures", "dtd10"))
    }
    return from_classes(train, test, generator(key).permutation(len(np.unique(train[1])))[:count], far)


def small_pictures_on_cnn(count: int, key: int, **shape: int) -> World:
    """Some classes of CIFAR-100, grey, on a convolutional network against as many others and street numbers."""
    found = tiles("cifar100_test", DATA)
    order = generator(key).permutation(100)[: 2 * count]
    rows = np.flatnonzero(np.isin(found.labels, order))
    pictures = np.asarray(found.inputs[rows], dtype=np.float32).mean(axis=-1)[:, 2:30, 2:30]
    train, test = divided(pictures, np.asarray(found.labels)[rows], key + 1)
    return on_cnn(train, test, order[:count], 15, {"SVHN": grey_sample("svhn_test10k", key + 2)}, **shape)


def _bunch(load: Callable[[], Any], make: Callable[..., World], *arguments: Any) -> World:
    found = load()
    return make(found.data, found.target, *arguments)


DEVELOPMENT: dict[str, Callable[[], World]] = {
    "CIFAR-10 DenseNet": partial(densenet, "cifar10", "cifar100"),
    "CIFAR-100 DenseNet": partial(densenet, "cifar100", "cifar10"),
    "CLINC150": partial(clinc, "all"),
    "BANKING77, 25 % known": partial(banking, 25),
    "BANKING77, 50 % known": partial(banking, 50),
    "BANKING77, 75 % known": partial(banking, 75),
    "CLINC150, 75 intents": partial(clinc, "half"),
    "CLINC150, 5 queries each": partial(clinc, "few"),
    "digits, MLP": partial(digits_on_mlp, 6, 57, (64,)),
    "digits, table": lambda: _bunch(datasets.load_digits, table, generator(58).permutation(10)[:7], False),
    "wine, MLP": lambda: _bunch(datasets.load_wine, on_mlp, [0, 2], (32,)),
    "wine, table": lambda: _bunch(datasets.load_wine, table, [0, 1], True),
    "breast cancer, table": lambda: _bunch(datasets.load_breast_cancer, table, [1], False),
    "made table, MLP": partial(made_table, 5, 7, 59, (64, 32), seed=3),
    "Fashion-MNIST, CNN": fashion,
    "Caltech-101 on ResNet-50": partial(on_resnet, "caltech101", 60, {"textures": "dtd10"}),
    "digits, CNN": partial(digits_on_cnn, 7, 15, 55),
    "textures on ResNet-50": partial(on_resnet, "dtd10", 7, {"Caltech-101": "caltech101"}),
    "street numbers, CNN": street_numbers_on_cnn,
    "words of CLINC150, MLP": words_on_mlp,
    "ImageNet ResNet-50": imagenet,
    "clothes, MLP": partial(clothes_on_mlp, 6, 92, (256, 96)),
    "CLINC150, 50 intents": partial(some_intents, 50, 93),
    "20 classes of Caltech-101 on ResNet-50": partial(photographs, 20, 94),
    "15 classes of CIFAR-100, CNN": partial(small_pictures_on_cnn, 15, 96),
    "CLINC150, 20 intents": partial(some_intents, 20, 207),
    "BANKING77, 15 intents": partial(some_bank_intents, 15, 208),
    "10 classes of Caltech-101 on ResNet-50": partial(photographs, 10, 203),
    "40 classes of Caltech-101 on ResNet-50": partial(photographs, 40, 205),
    "6 classes on the CIFAR-10 DenseNet": partial(head_on_densenet, "cifar10", 6, 209),
    "30 classes on the CIFAR-100 DenseNet": partial(head_on_densenet, "cifar100", 30, 210),
    "6 classes of CIFAR-10, CNN": partial(colours_on_cnn, "cifar10_test", "SVHN", 6, 221),
    "6 street numbers in colour, CNN": partial(colours_on_cnn, "svhn_test10k", "CIFAR-10", 6, 223, width=16),
    "6 kinds of clothes, CNN": partial(fewer_clothes, 6, 6, 231, width=16, seed=1),
    "5 digits, CNN": partial(digits_on_cnn, 5, 12, 241, width=16, seed=1),
    "80 breeds of dogs on ResNet-50": dogs,
    "30 classes of Caltech-101 on ResNet-50": partial(photographs, 30, 301),
    "CLINC150, 30 intents": partial(some_intents, 30, 303),
    "BANKING77, 30 intents": partial(some_bank_intents, 30, 304),
    "50 classes on the CIFAR-100 DenseNet": partial(head_on_densenet, "cifar100", 50, 305),
    "6 digits, CNN": partial(digits_on_cnn, 6, 15, 311, seed=2),
    "25 classes of Caltech-101 on ResNet-50": partial(photographs, 25, 501),
    "5 classes of CIFAR-10, CNN": partial(colours_on_cnn, "cifar10_test", "SVHN", 5, 306, width=32, seed=2),
    "5 kinds of clothes, CNN": partial(fewer_clothes, 5, 5, 308, width=32, seed=2),
    "5 kinds of clothes, MLP": partial(clothes_on_mlp, 5, 512, (128, 64)),
}
REPORT: dict[str, Callable[[], World]] = {
    "15 classes of Caltech-101 on ResNet-50": partial(photographs, 15, 601),
    "50 classes of Caltech-101 on ResNet-50": partial(photographs, 50, 603),
    "CLINC150, 40 intents": partial(some_intents, 40, 503),
    "BANKING77, 20 intents": partial(some_bank_intents, 20, 504),
    "40 classes on the CIFAR-100 DenseNet": partial(head_on_densenet, "cifar100", 40, 505),
    "5 classes on the CIFAR-10 DenseNet": partial(head_on_densenet, "cifar10", 5, 507),
    "8 classes of CIFAR-10, CNN": partial(colours_on_cnn, "cifar10_test", "SVHN", 8, 701, width=28, seed=31),
    "6 other street numbers in colour, CNN": partial(
        colours_on_cnn, "svhn_test10k", "CIFAR-10", 6, 708, width=20, seed=33
    ),
    "7 other kinds of clothes, CNN": partial(fewer_clothes, 7, 5, 703, width=28, seed=32),
    "7 other kinds of clothes, MLP": partial(clothes_on_mlp, 7, 706, (160, 80)),
}
