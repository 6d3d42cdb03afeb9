"""The order of rows: a permutation of any size, keyed, and random enough."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.torch.data.permutation import Permutation, _mixed

SEEDS = st.integers(0, 2**63)
EPOCHS = st.integers(0, 10**6)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), SEEDS, EPOCHS)
def test_every_number_comes_once(size: int, seed: int, epoch: int) -> None:
    """All places together give all numbers."""
    found = Permutation(size, seed, epoch)(np.arange(size, dtype=np.uint64))
    assert np.array_equal(np.sort(found), np.arange(size))


def _place_of(order: Permutation, numbers: np.ndarray) -> np.ndarray:
    """The inverse, by the rounds from the last to the first: where numbers stand."""

    def decrypt(values: np.ndarray) -> np.ndarray:
        high, low = values >> order._low_bits, values & order._low
        for number, key in reversed([*enumerate(order._keys)]):
            if number % 2:
                low = low ^ (_mixed(high + key) & order._low)
            else:
                high = high ^ (_mixed(low + key) & order._high)
        return high << order._low_bits | low

    found = decrypt(numbers)
    while (beyond := found >= order.size).any():
        found[beyond] = decrypt(found[beyond])
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**12), SEEDS, EPOCHS, st.data())
def test_any_size_can_be_inverted(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    """Up to 10^12 rows: numbers are within, and each leads back to its place, so no two places share one."""
    first = data.draw(st.integers(0, size - 1))
    places = np.arange(first, min(size, first + 200), dtype=np.uint64)
    order = Permutation(size, seed, epoch)
    found = order(places)
    assert (found < size).all()
    assert np.array_equal(_place_of(order, found), places)


def test_orders_of_seeds_and_epochs_are_unlike() -> None:
    """Of 1,000 rows about one keeps its place from one order to another."""
    places = np.arange(1000, dtype=np.uint64)
    orders = [Permutation(1000, seed, epoch)(places) for seed in range(8) for epoch in range(8)]
    same = [int((a == b).sum()) for n, a in enumerate(orders) for b in orders[:n]]
    assert 0.9 < np.mean(same) < 1.1
    assert max(same) < 12


def test_numbers_and_neighbours_are_evenly_spread() -> None:
    """Over 4,000 seeds every row comes first, and every pair of rows comes as first two, equally often (chi square)."""
    size, seeds = 12, 4000
    first = np.array([Permutation(size, seed, 3)(np.arange(2, dtype=np.uint64)) for seed in range(seeds)], dtype=int)
    ones = np.bincount(first[:, 0], minlength=size)
    pairs = np.bincount(first[:, 0] * size + first[:, 1], minlength=size * size).reshape(size, size)
    between = pairs[~np.eye(size, dtype=bool)]
    assert ((ones - seeds / size) ** 2 / (seeds / size)).sum() < 31.3  # 11 degrees of freedom, p = 0.001
    wanted = seeds / (size * (size - 1))
    assert ((between - wanted) ** 2 / wanted).sum() < 185  # 131 degrees of freedom, p = 0.001


def test_the_order_is_on_record() -> None:
    """The order of a seed is the same in every version: a run that is resumed goes on with its rows."""
    assert [*Permutation(10, 0, 0)(np.arange(10, dtype=np.uint64))] == [4, 6, 8, 9, 0, 2, 5, 7, 3, 1]
    assert [*Permutation(10**12, 7, 2)(np.arange(3, dtype=np.uint64))] == [311145713621, 104120379016, 97609837229]
