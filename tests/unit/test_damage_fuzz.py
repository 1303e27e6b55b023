"""Random damage to files ends in one line or in the same tokens; `make fuzz-files` does 2,000."""

import pytest

from tests.support.damage import Workshop

FEW, MANY = 60, 2000


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("damage"))


def faults(workshop, numbers):
    outcomes = {number: workshop.outcome(number) for number in numbers}
    return outcomes, {number: outcome for number, outcome in outcomes.items() if outcome.kind == "fault"}


def test_a_few_damaged_files(workshop):
    outcomes, wrong = faults(workshop, range(FEW))
    assert not wrong
    assert {"refused", "same"} <= {outcome.kind for outcome in outcomes.values()}


@pytest.mark.slow
def test_many_damaged_files(workshop):
    assert not faults(workshop, range(FEW, MANY))[1]
