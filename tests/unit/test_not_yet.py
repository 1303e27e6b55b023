"""A refused architecture says what it has that foreword does not compute."""

import json

import pytest

from foreword.checkpoint.families import FAMILIES
from foreword.checkpoint.not_yet import _NEEDS, what_it_needs
from foreword.checkpoint.opened import open_checkpoint
from foreword.errors import UnsupportedArchitectureError

NEEDS = {
    "qwen3_5": "it needs recurrent layers (gated delta net);",
    "gpt_oss": "it needs a mixture of experts and attention sinks;",
    "mixtral": "it needs a mixture of experts;",
    "nimbus": "which foreword does not have; supported",
}


@pytest.mark.parametrize("name", NEEDS)
def test_the_refusal_says_what_is_needed(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    with pytest.raises(UnsupportedArchitectureError) as refusal:
        open_checkpoint(tmp_path)
    assert NEEDS[name] in str(refusal.value)


def test_what_is_computed_is_not_said_to_be_missing():
    names = [name for names in _NEEDS.values() for name in names]
    assert len(set(names)) == len(names)
    assert not set(names) & set(FAMILIES)
    assert all(what_it_needs(name) for name in names)
