"""How far two sequences of tokens begin alike."""

from collections.abc import Sequence


def num_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest beginning that two sequences of the same type share."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # what is shared is at least `low` and less than `high`
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low
