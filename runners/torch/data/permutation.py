"""Rows in a random order of which nothing is stored: a keyed permutation of the numbers [0, size).

Whoever knows the key finds any place of the order in constant time and memory, on any worker, so that a micro-batch
that is computed again, or elsewhere, has the same rows.

The construction is an alternating Feistel network over as many bits as the numbers have (Luby and Rackoff, "How to
Construct Pseudorandom Permutations from Pseudorandom Functions", SIAM J. Comput. 17(2), 1988; unequal halves: Hoang and
Rogaway, "On Generalized Feistel Networks", CRYPTO 2010, section 1), whose results beyond the end are encrypted again
until one is within ("cycle walking": Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section
3); fewer than two walks a number on average, for the bits reach less than twice as far as the numbers. The round
function is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), so this is no cipher: it mixes rows, and
hides nothing.
"""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8  # each half is changed four times: the four of Luby and Rackoff, twice, for halves of a few bits
Places = NDArray[np.uint64]


class Permutation:
    """A permutation of [0, size), the same wherever and whenever it is made.

    Args:
        size: how many numbers, 1 to 2^62.
        seed: of the run.
        epoch: how often all numbers were passed before.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._low = np.uint64((1 << bits // 2) - 1)
        self._high = np.uint64((1 << bits - bits // 2) - 1)
        self._keys = np.random.SeedSequence((seed % 2**64, epoch)).generate_state(ROUNDS, np.uint64)

    def __call__(self, places: Places) -> Places:
        """The numbers at these places, each in [0, size); places that differ give numbers that differ."""
        found = self._encrypt(places)
        while (beyond := found >= self.size).any():
            found[beyond] = self._encrypt(found[beyond])
        return found

    def _encrypt(self, values: Places) -> Places:
        high, low = values >> self._low_bits, values & self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                low = low ^ (_mixed(high + key) & self._low)
            else:
                high = high ^ (_mixed(low + key) & self._high)
        return high << self._low_bits | low


def _mixed(values: Places) -> Places:
    """The finalizer of SplitMix64; products wrap around."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
