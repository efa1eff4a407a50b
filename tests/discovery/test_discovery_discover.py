import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offmap
from offmap.discovery import Discovery, Space, count_classes, discover
from offmap.discovery.assign import Rows
from offmap.discovery.inputs import read_labels
from offmap.discovery.methods import METHODS
from offmap.discovery.naming import suggest_names
from offmap.discovery.outliers import conformal_limit, find_outliers, outlier_distances
from offmap.errors import InputError, MissingError, StoreError
from offmap.metrics.clustering import open_world_accuracy


@pytest.fixture(scope="module")
def pile():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(8), 40)
    rows = (rng.normal(size=(8, 12))[truth] + 0.15 * rng.normal(size=(320, 12))).astype(np.float32)
    labels = np.where((truth < 4) & (rng.random(320) < 0.5), truth + 10, -1)
    return rows, truth, labels


@pytest.fixture(scope="module")
def found(pile):
    rows, _, labels = pile
    return discover(rows, labels, 8)


def test_contract(pile):
    rows, truth, labels = pile
    got = discover(rows, labels)
    assert got.n_classes == 8
    assert got.n_classes_interval[0] <= 8 <= got.n_classes_interval[1]
    assert got.labels.shape == got.is_novel.shape == got.confidence.shape == (320,)
    assert (got.labels[labels >= 0] == labels[labels >= 0]).all()
    assert set(got.labels) == {10, 11, 12, 13, 14, 15, 16, 17}
    assert (got.is_novel == (truth >= 4)).mean() > 0.97
    assert (got.confidence[labels >= 0] == 1).all()
    assert ((got.confidence >= 0) & (got.confidence <= 1)).all()
    for one, rows_of in got.exemplars.items():
        assert (got.labels[rows_of] == one).all()
    assert "8 classes" in got.summary()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_groups_and_keeps_labels(pile, method):
    rows, truth, labels = pile
    got = discover(rows, labels, 8, method)
    free = labels < 0
    assert (got.labels[~free] == labels[~free]).all()
    assert open_world_accuracy(truth[free], got.labels[free], range(4)).all > 0.7
    assert (discover(rows, labels, 8, method).labels == got.labels).all()


def test_names_as_labels(pile):
    rows, truth, _ = pile
    names = np.array(["ant", "bee", "cat", "dog"])
    labels = [names[t] if t < 4 and i % 2 else None for i, t in enumerate(truth)]
    got = discover(rows, labels, 8)
    assert got.names[0] == "ant"
    said = got.named_labels
    assert all(said[i] == label for i, label in enumerate(labels) if label is not None)


@pytest.mark.parametrize(
    ("labels", "codes"),
    [
        ([3, -1, 3], [0, -1, 0]),
        (["b", "", "a"], [1, -1, 0]),
        ([1.0, np.nan, 2.0], [0, -1, 1]),
        ([5, None, 2], [1, -1, 0]),
        (None, [-1, -1, -1]),
    ],
)
def test_labels_in_many_forms(labels, codes):
    assert read_labels(labels, 3).codes.tolist() == codes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_classes": 3}, "already name 4"),
        ({"n_classes": 5000}, "can hold at most"),
        ({"labels": np.arange(320) % 2, "n_classes": 3}, "0 of them unlabelled, can hold at most 2"),
        ({"n_classes": 2.5}, "whole number or 'auto'"),
        ({"method": "magic"}, "there is no discovery method 'magic'; choose one of auto, gcd"),
        ({"labels": [0, 1]}, "one per row"),
        ({"labels": np.full(320, -3)}, "-1 stands for unknown"),
        ({"labels": np.full(320, 0.5)}, "fractions"),
        ({"stability": -1}, "0 or more"),
        ({"outliers": 1.5}, "may be lost"),
        ({"texts": ["a"]}, "1 texts for 320 rows"),
    ],
)
def test_bad_input_is_named(pile, change, message):
    rows, _, labels = pile
    with pytest.raises(InputError, match=message):
        discover(rows, **{"labels": labels, **change})


def test_rows_that_are_no_numbers_are_refused(pile):
    rows = pile[0].copy()
    rows[7, 3] = np.nan
    with pytest.raises(InputError, match="row 7 holds NaN"):
        discover(rows)
    with pytest.raises(InputError, match="row 0 holds NaN, infinity or a number above"):
        discover(1e20 * pile[0])
    with pytest.raises(InputError, match="rows × columns"):
        discover(np.zeros((0, 3)))
    with pytest.raises(InputError, match="numbers are needed"):
        discover(np.array([["a", "b"]]))


def test_everything_labelled_and_nothing_labelled(pile):
    rows, truth, _ = pile
    done = discover(rows, truth)
    assert (done.labels == truth).all()
    assert (done.n_classes, int(done.is_novel.sum())) == (8, 0)
    blind = discover(rows)
    assert abs(blind.n_classes - 8) <= 1
    assert blind.is_novel.all()


def test_one_class_one_row_duplicates_and_one_huge_class():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 5)).astype(np.float32)
    one = discover(rows, n_classes=1)
    assert (one.n_classes, set(one.labels)) == (1, {0})
    assert discover(rows[:1], n_classes=1).labels.tolist() == [0]
    same = discover(np.ones((30, 4)), n_classes=3)
    assert len(same.labels) == 30
    assert 1 <= same.n_classes <= 3
    assert 1 <= discover(np.ones((30, 4))).n_classes <= 30
    huge = np.concatenate([rng.normal(size=(900, 5)) * 0.05, rng.normal(size=(5, 5)) * 0.05 + 3]).astype(np.float32)
    got = discover(huge, n_classes=2, space=Space("euclidean"))
    assert sorted(np.bincount(got.labels).tolist()) == [5, 900]


def _strange_piles():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 5)).astype(np.float32)
    two = np.concatenate([0.05 * rows[:20], 0.05 * rows[20:] + 3])
    where = np.arange(40)
    same, some = np.ones((30, 4)), np.where(np.arange(30) < 10, np.arange(30) % 2, -1)
    copies, of = np.repeat(rows[:10], 4, axis=0), np.repeat(np.arange(10), 4)
    return {
        "one row": (rows[:1], None, "auto"),
        "two rows": (rows[:2], None, "auto"),
        "as many classes as rows": (rows, None, 40),
        "one class": (rows, None, 1),
        "one class, some labelled": (rows, np.where(where < 5, 0, -1), 1),
        "one labelled row": (two, np.where(where < 1, 0, -1), 2),
        "one unlabelled row": (two, np.where(where < 39, where // 20, -1), "auto"),
        "one unlabelled row of its own class": (two, np.where(where < 39, where // 20, -1), 3),
        "all labelled, one class": (rows, np.zeros(40, int), "auto"),
        "every known class has one row": (rows, np.where(where < 20, where, -1), "auto"),
        "all rows alike": (same, None, "auto"),
        "all rows alike, three classes": (same, None, 3),
        "all rows alike, two labels": (same, some, "auto"),
        "copies of ten rows": (copies, None, 10),
        "copies of ten rows, half known": (copies, np.where(of < 5, of, -1), "auto"),
        "rows of zeros": (np.zeros((20, 3)), None, "auto"),
        "one column": (np.linspace(0, 1, 50)[:, None], None, "auto"),
        "half precision": (two.astype(np.float16), None, 2),
        "whole numbers": ((10 * two).astype(int), None, 2),
        "large class numbers": (two, np.where(where < 5, 1000, -1), "auto"),
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(_strange_piles()))
def test_strange_piles_are_answered_by_every_method(name):
    rows, labels, k = _strange_piles()[name]
    given = np.full(len(rows), -1) if labels is None else labels
    for method in ("auto", *METHODS):
        got = discover(rows, labels, k, method, outliers=method == "vmf")
        assert (got.labels[given >= 0] == given[given >= 0]).all()
        assert np.isfinite(got.confidence).all()
        assert got.n_classes == len({*got.labels[got.labels >= 0].tolist(), *got.known_ids.tolist()})
        if k != "auto" and method not in ("hdbscan", "kmeans"):  # formed without labels, then named after them
            assert got.n_classes <= k
        assert "classes" in got.summary()


def test_a_column_of_zeros_and_rows_of_zeros_do_no_harm(pile):
    rows, _, labels = pile
    padded = np.concatenate([rows, np.zeros((320, 2), np.float32)], axis=1)
    padded[5] = 0
    assert np.isfinite(discover(padded, labels, 8).confidence).all()


def test_noise_is_flagged_and_small_classes_are_not(pile):
    rows, _, labels = pile
    rng = np.random.default_rng(1)
    tiny = (2 * rng.normal(size=12) + 0.15 * rng.normal(size=(5, 12))).astype(np.float32)
    noise = rng.uniform(-4, 4, size=(120, 12)).astype(np.float32)
    rows = np.concatenate([rows, tiny, noise])
    labels = np.concatenate([labels, np.full(125, -1)])
    got = discover(rows, labels, 9, outliers=0.02, space=Space("euclidean"))
    assert (got.labels[325:] < 0).mean() > 0.95
    assert (got.labels[:320] < 0).mean() < 0.1
    assert (got.labels[320:325] >= 0).sum() >= 3
    assert "of none" in got.summary()


def test_at_most_the_wanted_share_of_rows_with_a_class_is_flagged():
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 20, 6000)
    rows = (rng.normal(size=(20, 8))[truth] + 0.3 * rng.normal(size=(6000, 8))).astype(np.float32)
    codes = np.where((truth < 10) & (rng.random(6000) < 0.5), truth, -1)
    for lost in (0.02, 0.1):
        flagged = find_outliers(Rows(rows), codes, lost)
        assert not flagged[codes >= 0].any()
        assert lost / 2 < flagged[codes < 0].mean() < 1.5 * lost


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.5), st.integers(2, 300))
def test_the_limit_is_the_smallest_that_keeps_its_promise(seed, lost, n):
    scores = np.random.default_rng(seed).normal(size=n)
    limit = conformal_limit(scores, lost)
    # a new score ranks anywhere among the n + 1 with equal chance
    assert ((scores > limit).sum() + 1) / (n + 1) <= lost + 1e-9 or np.isinf(limit)
    lower = scores[scores < limit].max(initial=-np.inf)
    assert ((scores > lower).sum() + 1) / (n + 1) > lost - 1e-9


def test_loneliness_is_the_mean_distance_to_the_four_nearest_others(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 5)).astype(np.float32)
    rows[7] = rows[8]
    gaps = np.linalg.norm(rows[:, None] - rows, axis=2)
    np.fill_diagonal(gaps, np.inf)
    np.testing.assert_allclose(outlier_distances(Rows(rows)), np.sort(gaps, axis=1)[:, :4].mean(axis=1), atol=1e-3)
    monkeypatch.setattr("offmap.discovery.outliers.BANK_ROWS", 30)
    fewer = outlier_distances(Rows(rows))
    assert (fewer >= outlier_distances(Rows(rows)) - 1e-3).all()
    assert np.corrcoef(fewer, np.sort(gaps, axis=1)[:, :4].mean(axis=1))[0, 1] > 0.6


def test_a_memory_map_gives_the_same_answer_and_stays_on_disk(pile, tmp_path):
    rows, _, labels = pile
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for space in (Space("cosine"), Space("cosine", 0.5, 10)):
        held = discover(rows, labels, space=space, outliers=True)
        got = discover(mapped, labels, space=space, outliers=True)
        np.testing.assert_array_equal(got.labels, held.labels)
        assert got.count == held.count
        assert isinstance(got.rows, np.memmap)
    assert got.split(14).n_classes == got.n_classes + 1
    assert [file.name for file in tmp_path.iterdir()] == ["rows.npy"]


def test_without_outliers_nothing_is_minus_one(found):
    assert (found.labels >= 0).all()
    assert not find_outliers(Rows(np.ones((3, 2))), np.full(3, -1)).any()


def test_stability_lowers_confidence_only(pile, found):
    rows, _, labels = pile
    shaky = discover(rows, labels, 8, stability=2)
    assert (shaky.confidence <= found.confidence + 1e-6).all()
    assert (shaky.labels == found.labels).all()


def test_classes_are_edited_by_the_names_that_the_summary_prints(found):
    first, second = found.novel[:2]
    assert first.name in found.summary()
    renamed = found.rename({first.name: "cars"})
    assert renamed.journal == found.rename({first.id: "cars"}).journal
    assert "cars" in renamed.summary()
    for edit, by in (("merge", [["cars", second.name], [first.id, second.id]]), ("discard", ["cars", first.id]),
                     ("split", ["cars", first.id])):  # fmt: skip
        by_name, by_number = (getattr(renamed, edit)(one) for one in by)
        np.testing.assert_array_equal(by_name.labels, by_number.labels)
        assert by_name.journal == by_number.journal
    with pytest.raises(InputError, match="2 classes are called so"):
        renamed.rename({second.id: "cars"}).discard("cars")
    with pytest.raises(InputError, match=r"there is no such class; .* called .*cars"):
        renamed.discard(first.name)


def test_edits_are_kept_in_a_journal(found):
    novel = [info.id for info in found.classes if not info.known]
    merged = found.merge(novel[:2])
    assert merged.n_classes == 7
    assert (merged.labels == novel[0]).sum() == np.isin(found.labels, novel[:2]).sum()
    parted = merged.split(novel[0])
    assert parted.n_classes == 8
    assert len(np.unique(parted.labels)) == 8
    named = parted.rename({novel[0]: "zebra"})
    assert named.names[novel[0]] == "zebra"
    gone = named.discard(novel[3])
    assert (gone.labels < 0).sum() == (found.labels == novel[3]).sum()
    assert [entry["action"] for entry in gone.journal] == ["merge", "split", "rename", "discard"]
    assert found.journal == ()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.merge([10, 11]), "at most one of them known"),
        (lambda f: f.merge([14]), "two or more"),
        (lambda f: f.discard(10), "a known class stays"),
        (lambda f: f.split(14, 1), "between 2"),
        (lambda f: f.rename({99: "x"}), "no such class"),
    ],
)
def test_bad_edits_are_named(found, edit, message):
    with pytest.raises(InputError, match=message):
        edit(found)


def test_save_and_load(found, tmp_path, pile):
    edited = found.rename({14: "fourteen"})
    edited.save(tmp_path / "found.offmap")
    back = Discovery.load(tmp_path / "found.offmap")
    np.testing.assert_array_equal(back.labels, edited.labels)
    assert back.classes == edited.classes
    assert back.journal == edited.journal
    assert back.summary() == edited.summary()
    with pytest.raises(MissingError, match="features are not in the file"):
        back.split(14)
    again = Discovery.load(tmp_path / "found.offmap", rows=found.rows)
    assert again.split(14).n_classes == 9
    (tmp_path / "bad.offmap").write_bytes(b"nothing")
    with pytest.raises(StoreError):
        Discovery.load(tmp_path / "bad.offmap")


def test_the_count_survives_saving(pile, tmp_path):
    rows, _, labels = pile
    got = discover(rows, labels)
    got.save(tmp_path / "a.offmap")
    assert Discovery.load(tmp_path / "a.offmap").count == got.count


def test_texts_name_classes_and_fill_the_page(pile, tmp_path):
    rows, truth, labels = pile
    words = ["card", "loan", "visa", "rate", "fraud", "refund", "branch", "salary"]
    texts = [f"please help with my {words[t]}" for t in truth]
    got = discover(rows, labels, 8, texts=texts)
    for info in got.classes:
        if not info.known:
            assert words[truth[info.exemplars[0]]] in info.name
    got.to_html(tmp_path / "page.html", items=texts)
    page = (tmp_path / "page.html").read_text()
    assert "please help with my salary" in page
    assert "Novel classes" in page


def test_images_fill_the_page(found, tmp_path):
    images = np.zeros((320, 8, 8), np.uint8)
    found.to_html(tmp_path / "page.html", items=images)
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text()
    with pytest.raises(InputError, match="one per row"):
        found.to_html(tmp_path / "x.html", items=images[:3])


def test_keywords_of_stop_words_only():
    assert suggest_names(["the", "and"], np.array([0, 1])) == {0: "class 0", 1: "class 1"}


@pytest.mark.data
def test_whitened_start_beats_plain_kmeans_on_real_texts(data_folder):
    held = np.load(data_folder / "text" / "banking77_minilm.npz")
    rows, truth = held["test_features"].astype(np.float32), held["test_labels"].astype(np.int64)
    rng = np.random.default_rng(5)
    known = rng.permutation(77)[:38]
    labels = np.where(np.isin(truth, known) & (rng.random(len(truth)) < 0.5), truth, -1)
    free = labels < 0
    ours = discover(rows, labels, 77, space=Space("cosine", 0.5, 10))
    plain = discover(rows, labels, 77, "kmeans")
    score = [open_world_accuracy(truth[free], got.labels[free], known).all for got in (ours, plain)]
    assert score[0] > score[1] + 0.02


def test_steps_are_told_as_they_begin(pile):
    rows, _, labels = pile
    told = []
    discover(rows, labels, on_step=lambda words, share: told.append((words, share)))
    assert [words.split()[0] for words, _ in told] == ["preparing", "looking", "describing"]
    assert [share for _, share in told] == sorted(share for _, share in told)


def test_a_summary_shows_texts_or_files_as_examples_and_says_how_many_classes_it_leaves_out():
    centres = 20 * np.eye(13, 14)
    rows = np.repeat(centres, 12, axis=0) + np.random.default_rng(0).normal(size=(156, 14))
    found = discover(rows, n_classes=13)
    names = [f"picture {number}.png" for number in range(156)]
    lines = found.summary(names).splitlines()
    first = found.novel[0].exemplars[0]
    assert f"e.g. picture {first}.png | picture" in next(line for line in lines if f"picture {first}.png" in line)
    assert lines[-1] == "  and 3 more"
    assert "rows [" in found.summary()
    with pytest.raises(InputError, match="3 names for 156 rows; give one each"):
        found.summary(names[:3])


def test_labels_without_a_sign_that_hold_what_minus_one_becomes_are_refused():
    rows = np.random.default_rng(0).normal(size=(40, 5))
    wrapped = np.where(np.arange(40) < 20, np.arange(40) % 2, 255).astype(np.uint8)
    with pytest.raises(InputError, match="uint8 hold 255, which is what -1 becomes"):
        discover(rows, wrapped)
    with pytest.raises(InputError, match="astype"):
        offmap.openworld.run(rows, wrapped, rows, rounds=1)
    assert count_classes(rows).n_classes >= 1
