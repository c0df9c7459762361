import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.tasks.splitting import sample_each_class, shuffled_indices, stratified_split


@given(
    strata=st.lists(st.integers(0, 4), min_size=20, max_size=300),
    share=st.floats(0.02, 0.3),
    seed=st.integers(0, 2**32),
)
def test_splits_are_disjoint_and_have_the_same_distribution_of_classes(
    strata: list[int], share: float, seed: int
) -> None:
    size = max(1, round(share * len(strata)))
    splits = stratified_split(strata, {"dev": size, "test": size}, seed)
    assert sorted(np.concatenate(list(splits.values()))) == list(range(len(strata)))
    assert len(splits["dev"]) == len(splits["test"]) == size
    for number in set(strata):
        expected = size * strata.count(number) / len(strata)
        for name in ("dev", "test"):
            assert abs(sum(strata[index] == number for index in splits[name]) - expected) <= 2


@given(classes=st.lists(st.integers(0, 6), min_size=15, max_size=100), seed=st.integers(0, 100))
def test_excluded_rows_are_never_drawn_and_contain_every_class(classes: list[int], seed: int) -> None:
    excluded = sample_each_class(classes, seed)
    assert {classes[index] for index in excluded} == set(classes)
    assert len(excluded) == len(set(classes))
    splits = stratified_split(classes, {"test": 5}, seed, excluded=excluded)
    assert set(excluded) <= set(splits["rest"])


def test_sampled_rows_of_a_multi_label_array_contain_every_class() -> None:
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]])
    excluded = sample_each_class(labels, 3)
    assert labels[excluded].any(axis=0).tolist() == [True, True, False]


def test_the_order_depends_on_the_seed_only() -> None:
    expected = [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert shuffled_indices(10, 0).tolist() == expected
    assert shuffled_indices(10, 1).tolist() != expected


def test_splits_have_the_same_distribution_of_ratings() -> None:
    ratings = np.random.default_rng(0).normal(size=1000)
    splits = stratified_split(ratings, {"test": 100}, 0)
    assert abs(ratings[splits["test"]].mean() - ratings.mean()) < 0.02
    assert abs(ratings[splits["test"]].std() - ratings.std()) < 0.05


def test_too_few_rows_raise_an_error() -> None:
    with pytest.raises(ValueError, match="test needs 3 rows, but 2 are available"):
        stratified_split([0, 1, 1], {"test": 3}, 0, excluded=np.array([0]))
