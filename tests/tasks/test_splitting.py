import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.tasks.splitting import one_of_each, shuffled_indices, split


@given(
    strata=st.lists(st.integers(0, 4), min_size=20, max_size=300),
    share=st.floats(0.02, 0.3),
    seed=st.integers(0, 2**32),
)
def test_every_row_is_in_one_split_and_classes_are_spread_alike(strata: list[int], share: float, seed: int) -> None:
    size = max(1, round(share * len(strata)))
    found = split(strata, {"dev": size, "test": size}, seed)
    assert sorted(np.concatenate(list(found.values()))) == list(range(len(strata)))
    assert len(found["dev"]) == len(found["test"]) == size
    for number in set(strata):
        expected = size * strata.count(number) / len(strata)
        for name in ("dev", "test"):
            assert abs(sum(strata[index] == number for index in found[name]) - expected) <= 2


@given(classes=st.lists(st.integers(0, 6), min_size=15, max_size=100), seed=st.integers(0, 100))
def test_kept_rows_are_never_drawn_and_hold_every_class(classes: list[int], seed: int) -> None:
    kept = one_of_each(classes, seed)
    assert {classes[index] for index in kept} == set(classes)
    assert len(kept) == len(set(classes))
    found = split(classes, {"test": 5}, seed, kept=kept)
    assert set(kept) <= set(found["rest"])


def test_one_row_of_each_label_where_rows_have_several() -> None:
    table = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]])
    kept = one_of_each(table, 3)
    assert table[kept].any(axis=0).tolist() == [True, True, False]


def test_the_order_of_a_seed_is_the_same_everywhere() -> None:
    expected = [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert shuffled_indices(10, 0).tolist() == expected
    assert shuffled_indices(10, 1).tolist() != expected


def test_ratings_are_spread_alike() -> None:
    ratings = np.random.default_rng(0).normal(size=1000)
    found = split(ratings, {"test": 100}, 0)
    assert abs(ratings[found["test"]].mean() - ratings.mean()) < 0.02
    assert abs(ratings[found["test"]].std() - ratings.std()) < 0.05


def test_more_rows_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 rows asked for test, 2 there"):
        split([0, 1, 1], {"test": 3}, 0, kept=np.array([0]))
