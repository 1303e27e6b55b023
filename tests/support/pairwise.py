"""Cross products of test parameters: a part that holds every pair of values in the default run, the rest marked slow."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

Cell = tuple[Any, ...]


def pairwise(*axes: Sequence[Any], ids: Sequence[str] | None = None) -> list[Any]:
    """The whole product as `pytest.param`s; `ids` names its cells, in the order of `itertools.product`."""
    cells = list(product(*axes))
    chosen = covering(cells)
    return [
        pytest.param(
            *cell,
            id="-".join(map(str, cell)) if ids is None else ids[i],
            marks=() if i in chosen else (pytest.mark.slow,),
        )
        for i, cell in enumerate(cells)
    ]


def covering(cells: Sequence[Cell]) -> set[int]:
    """Numbers of cells, few, in which every pair of values of two axes that occurs in some cell occurs."""
    pairs_of = [{(i, repr(cell[i]), j, repr(cell[j])) for i, j in combinations(range(len(cell)), 2)} for cell in cells]
    missing = set().union(*pairs_of)
    chosen: set[int] = set()
    while missing:
        best = max(range(len(cells)), key=lambda i: len(pairs_of[i] & missing))
        chosen.add(best)
        missing -= pairs_of[best]
    return chosen
