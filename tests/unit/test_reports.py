"""Every public bug report of ../shared/reference/reports.md has a test of its kind, or a reason why it concerns something else.

A test carries the tag of a report, such as R05 in brackets, in its docstring; `PROVED` names those that do not.
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROVED = {
    "R01": "unit/test_hf_adapter.py::test_drafts_do_not_change_the_words",
    "R02": "native/test_invariance.py::test_trees_and_batches_give_the_bits_of_plain_decoding",
    "R03": "e2e/test_check.py::test_near_ties_are_reported_each_and_are_no_fault",
    "R25": "unit/test_eagle.py::test_a_proposal_is_what_the_network_says_of_the_text",
    "R33": "unit/test_medusa.py::test_tokens_are_those_of_plain_decoding",
    "R34": "equivalence/test_combinations.py::test_a_cell_keeps_its_word",
    "R43": "equivalence/test_combinations.py::test_a_cell_keeps_its_word",
    "R49": "unit/test_stop_strings.py::test_streams_never_split_a_character_nor_show_a_stop_string",
    "R60": "unit/test_checkpoint_folder.py::test_a_parameter_that_would_be_left_out_is_refused",
    "R62": "unit/test_adaptive.py::test_an_always_wrong_drafter_costs_less_than_two_percent",
    "R63": "unit/test_adaptive.py::test_nothing_is_kept_that_does_not_pay",
    "R69": "unit/test_engine_robustness.py::test_a_request_that_cannot_start_ends_and_leaves_nothing",
    "R72": "unit/test_eagle.py::test_misfits_are_refused_with_the_reason",
    "R73": "unit/test_train_eagle3.py::test_saved_files_are_the_network",
    "R74": "unit/test_eagle.py::test_a_reduced_vocabulary_names_the_targets_tokens",
    "R75": "unit/test_eagle.py::test_taps_follow_the_convention",
    "R76": "unit/test_eagle.py::test_the_layer_is_the_reference",
    "R78": "unit/test_medusa.py::test_tokens_are_those_of_plain_decoding",  # the target's tables are tied
    "R79": "unit/test_train_run.py::test_greedy_answers_are_the_targets_own_words",
    "R80": "unit/test_train_run.py::test_the_loss_mask_follows_the_chat_template",
    "R81": "unit/test_train_run.py::test_the_draft_vocabulary_round_trips",
    "R82": "unit/test_train_run.py::test_a_run_that_was_killed_ends_as_one_that_was_not",
    "R83": "unit/test_train_run.py::test_the_decoder_drafts_what_the_trainer_measured",
    "R84": "unit/test_stop_strings.py::test_a_reader_that_goes_away_frees_the_request",
    "R85": "unit/test_adaptive.py::test_reasons_are_in_words",
    "R88": "equivalence/test_scripted.py::test_an_oracle_is_always_accepted",
    "R90": "unit/test_stopping.py::test_any_token_declared_the_end_stops_right_there",
}
OUT_OF_SCOPE = {
    "R15": "ranks of a tensor-parallel engine that must agree: foreword runs on one device",
    "R30": "a static cache handed in by the caller: the adapter makes its own",
    "R45": "a parser of reasoning that gets several tokens at once: foreword hands out text and parses none",
    "R46": "tool calls streamed by a server: foreword has neither server nor tool-call parser",
    "R50": "marks of drafted tokens in a user interface: foreword marks none, it counts",
    "R86": "optional fields of a server's requests: there is no server yet",
    "R87": "a target sharded over devices: foreword runs on one device",
}


def reports(shared_dir: Path) -> set[str]:
    text = (shared_dir / "reference" / "reports.md").read_text()
    return set(re.findall(r"^\*\*(R\d\d)\b", text, re.MULTILINE))


def tagged() -> dict[str, set[str]]:
    """Files by report. Tags stand in brackets, alone or several."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for bracket in re.findall(r"\[(R\d\d(?:[,;] R\d\d)*)\]", path.read_text()):
            for tag in re.findall(r"R\d\d", bracket):
                found.setdefault(tag, set()).add(path.name)
    return found


def test_every_report_has_a_test_or_a_reason(shared_dir):
    known = tagged().keys() | PROVED.keys() | OUT_OF_SCOPE.keys()
    assert sorted(reports(shared_dir) - known) == []
    assert sorted(known - reports(shared_dir)) == []


def test_no_report_is_both_tested_and_out_of_scope():
    assert sorted(OUT_OF_SCOPE.keys() & (tagged().keys() | PROVED.keys())) == []
    assert sorted(PROVED.keys() & tagged().keys()) == []


@pytest.mark.parametrize("place", sorted(set(PROVED.values())))
def test_the_named_tests_exist(place):
    path, _, name = place.partition("::")
    assert re.search(rf"^def {name}\(", (TESTS / path).read_text(), re.MULTILINE)
