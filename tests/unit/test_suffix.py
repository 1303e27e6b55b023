"""The suffix tree counts right, forgets right, and guesses what it should."""

import io
import json
import multiprocessing
import random
import threading
from collections import Counter, deque
from pathlib import Path

import pytest

from foreword.draft.base import Plan
from foreword.draft.lookup import past_outputs
from foreword.draft.lookup.past_outputs import PastOutputs
from foreword.draft.lookup.suffix import SuffixDrafter, SuffixOptions
from foreword.draft.lookup.suffix_guess import GuessLimits, guess_after
from foreword.draft.lookup.suffix_tree import Node, SuffixTree, Text
from foreword.errors import ConfigError
from tests.support.counted import lines_run

DEPTH = 6


def occurrences(texts, max_depth=DEPTH):
    """Every string of up to `max_depth` tokens and how often it occurs, by cutting it out everywhere."""
    return Counter(
        tuple(text[start:end])
        for text in texts
        for start in range(len(text))
        for end in range(start + 1, min(start + max_depth, len(text)) + 1)
    )


def check_counts(tree, texts):
    counts = occurrences(texts)
    for string, count in counts.items():
        if len(string) < DEPTH:
            entry = tree.find(list(string))
            assert entry is not None, f"{string} is missing"
            assert (entry.count if isinstance(entry, Node) else 1) == count, f"{string}"
    num_nodes, open_nodes = 0, deque([(tree.root, ())])
    while open_nodes:  # nothing is there that does not occur
        node, string = open_nodes.popleft()
        for token, child in node.children.items():
            assert counts[(*string, token)] > 0, f"{(*string, token)} does not occur"
            num_nodes += 1
            if isinstance(child, Node):
                open_nodes.append((child, (*string, token)))
    return num_nodes


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_cutting_out_every_string(seed):
    rng = random.Random(seed)
    tree, texts = SuffixTree(DEPTH), [Text() for _ in range(3)]
    for text in texts:
        for _ in range(15):
            tree.extend(text, [rng.randrange(rng.choice([2, 3, 8])) for _ in range(rng.randrange(4))])
    check_counts(tree, [t.tokens for t in texts])
    assert tree.num_tokens == sum(len(t.tokens) for t in texts)


@pytest.mark.parametrize("seed", range(20))
def test_open_nodes_are_the_suffixes_that_occur_elsewhere(seed):
    rng = random.Random(seed)
    tree, text = SuffixTree(DEPTH), Text()
    for _ in range(60):
        tree.extend(text, [rng.randrange(3)])
        counts = occurrences([text.tokens])
        lengths = [n for n in range(1, DEPTH) if counts[tuple(text.tokens[-n:])] > 1 and n <= len(text.tokens)]
        assert len(text.open_nodes) - 1 == len(lengths)
        for length, node in zip(reversed(lengths), text.open_nodes, strict=False):
            assert node.count == counts[tuple(text.tokens[-length:])]


@pytest.mark.parametrize("seed", range(20))
def test_a_text_that_is_taken_out_was_never_there(seed):
    rng = random.Random(seed)
    tree, texts = SuffixTree(DEPTH), []
    for _ in range(8):
        text = Text()
        tree.extend(text, [rng.randrange(rng.choice([2, 6])) for _ in range(rng.randrange(1, 30))])
        texts.append(text)
    while texts:
        tree.remove(texts.pop(rng.randrange(len(texts))))
        check_counts(tree, [t.tokens for t in texts])
    assert tree.root.children == {}
    assert tree.num_tokens == 0


def test_only_the_last_text_grows():
    tree, first, second = SuffixTree(DEPTH), Text(), Text()
    tree.extend(first, [1, 2])
    tree.extend(second, [1])
    with pytest.raises(AssertionError, match="cannot grow"):
        tree.extend(first, [3])


def test_memory_grows_with_the_text_not_with_its_depth():
    rng = random.Random(0)
    tree, text = SuffixTree(64), Text()
    tree.extend(text, [rng.randrange(1000) for _ in range(5000)])
    entries, open_nodes = 0, [tree.root]
    while open_nodes:
        children = open_nodes.pop().children
        entries += len(children)
        open_nodes.extend(child for child in children.values() if isinstance(child, Node))
    assert entries < 2 * 5000 + 1000


@pytest.mark.parametrize("seed", range(10))
def test_the_longest_match_by_bisection_is_that_of_a_scan(seed):
    rng = random.Random(seed)
    tree, text = SuffixTree(DEPTH), Text()
    tree.extend(text, [rng.randrange(4) for _ in range(60)])
    for _ in range(30):
        query = [rng.randrange(5) for _ in range(rng.randrange(1, 9))]
        lengths = range(min(len(query), DEPTH - 1) + 1)
        longest = max(n for n in lengths if tree.find(query[len(query) - n :]) is not None)
        assert tree.longest_match(query) == longest


def guess(tokens, num_nodes=8, depth=8, min_prob=0.0, is_chain=False, length=None):
    tree, text = SuffixTree(24), Text()
    tree.extend(text, tokens)
    longest = len(text.open_nodes) - 1
    length = longest if length is None else length
    node = text.open_nodes[longest - length]
    return guess_after(node, length, GuessLimits(num_nodes, depth, min_prob, is_chain), text.tokens)


def test_frequencies_become_chances():
    # after 5: twice 1, once 2. Three occurrences before this one, a match of one token: 2 / (3 + 2 / 1) and 1 / 5.
    found = guess([5, 1, 9, 5, 2, 8, 5, 1, 7, 5], depth=1, length=1)
    assert dict(zip(found.token_ids, found.probs, strict=True)) == pytest.approx({1: 2 / 5, 2: 1 / 5})
    assert found.score == pytest.approx(3 / 5)


def test_a_chain_takes_the_commonest_continuation():
    tokens = [5, 1, 9, 9, 5, 2, 8, 5, 1, 7, 5]
    assert guess(tokens, is_chain=True, depth=1).token_ids == [1]
    assert guess(tokens, num_nodes=3, is_chain=True).parents == [-1, 0, 1]
    assert 2 in guess(tokens).token_ids


def test_a_loop_is_drafted_to_full_length_past_the_end_of_the_text():
    found = guess([4, 1, 2, 3, 1, 2, 3], num_nodes=9, depth=9)
    assert found.token_ids == [1, 2, 3] * 3
    assert found.parents == list(range(-1, 8))
    assert guess([7, 7], num_nodes=5).token_ids == [7] * 5


def test_unlikely_nodes_are_left_out():
    tokens = [5, 1, 9, 5, 2, 8, 5, 1, 7, 5]
    assert all(prob >= 0.3 for prob in guess(tokens, min_prob=0.3).probs)
    assert guess(tokens, min_prob=0.99).token_ids == []


class View:
    reference_ids = ()
    is_remembered = True

    def __init__(self, token_ids, request_id=0, prompt_len=None):
        self.token_ids, self.request_id = token_ids, request_id
        self.prompt_len = len(token_ids) if prompt_len is None else prompt_len
        self.kv_len = len(token_ids) - 1


def proposal(drafter, view, num_nodes=8):
    (tree,) = drafter.propose([view], [Plan(1, num_nodes, num_nodes)])
    tree.check()
    return list(tree.token_ids[1:])


def past_drafter(**options) -> SuffixDrafter:
    config = {"suffix_decoding_max_cached_requests": 4, "suffix_decoding_max_cached_tokens": 1000, **options}
    return SuffixDrafter(SuffixOptions(**config), vocab_size=100)


def finish(drafter, prompt, answer, request_id):
    view = View(prompt, request_id)
    drafter.start(view)
    view.token_ids = [*prompt, *answer]
    drafter.stop(view)


def test_past_answers_are_a_source_only_where_asked():
    for drafter, expected in ((past_drafter(), [12, 13, 14]), (SuffixDrafter(SuffixOptions(), 100), [])):
        finish(drafter, [1, 2], [10, 11, 12, 13, 14], 0)
        view = View([50, 10, 11], 1)
        drafter.start(view)
        assert proposal(drafter, view) == expected


def test_memory_of_past_answers_is_bounded_and_the_oldest_leaves():
    """[R67]: ten times the cap goes in, at most the cap stays, and what left is not proposed any more."""
    past = PastOutputs(8, max_requests=5, max_tokens=100, vocab_size=1000)
    for number in range(50):
        past.add([number * 7 + i for i in range(20)])
        assert len(past) <= 5
        assert past.tree.num_tokens <= 100
    assert past.tree.find([44 * 7 + 1, 44 * 7 + 2]) is None
    assert past.tree.find([45 * 7 + 1, 45 * 7 + 2]) is not None
    past.add(list(range(300)))
    assert past.tree.num_tokens <= 100
    assert past.tree.find([298, 299]) is not None


def test_a_file_of_past_answers_is_read_and_added_to(tmp_path):
    file = tmp_path / "deeper" / "past.jsonl"
    first = past_drafter(suffix_decoding_file=str(file))
    for number in range(12):
        finish(first, [1], [number, 20, 21, 22, 23], number)
    second = past_drafter(suffix_decoding_file=str(file))
    assert len(second.past) == 4
    assert len(file.read_text().splitlines()) == 4  # the rest was dropped while reading
    view = View([90, 20, 21], 99)
    second.start(view)
    assert proposal(second, view)[:2] == [22, 23]


def test_a_file_that_cannot_be_shortened_is_used_as_it_is(tmp_path, caplog, monkeypatch):
    file = tmp_path / "past.jsonl"
    file.write_text("".join(f"[{number}, 20, 21, 22, 23]\n" for number in range(12)))

    def refuse(*_, **__):
        raise PermissionError("no new file may be put into this folder")

    monkeypatch.setattr("foreword.files.secrets.token_hex", refuse)
    drafter = past_drafter(suffix_decoding_file=str(file))
    assert "cannot be shortened: " in caplog.text
    assert len(drafter.past) == 4
    finish(drafter, [1], [40, 41, 42], 0)
    assert len(file.read_text().splitlines()) == 13
    view = View([90, 20, 21], 99)
    drafter.start(view)
    assert proposal(drafter, view)[:2] == [22, 23]


CUTS = ["[1,2", "[", "[10,11,1[3,4]", "[1,\0\0\0", "\0\0\0", "[" * 100_000]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("is_last", [True, False])
def test_a_cut_line_is_told_once_and_gone_on_from(tmp_path, caplog, cut, is_last):
    file = tmp_path / "past.jsonl"
    file.write_text(f"[1,2]\n{cut}" if is_last else f"[1,2]\n{cut}\n[5,6]\n")
    drafter = past_drafter(suffix_decoding_file=str(file))
    (told,) = caplog.records
    assert "1 of its last" in told.message
    assert "cut short" in told.message
    finish(drafter, [1], [7, 8], 0)
    again = past_drafter(suffix_decoding_file=str(file))
    assert len(again.past) == (2 if is_last else 3)
    assert len(caplog.records) == 1
    assert file.read_text() == ("[1,2]\n[7,8]\n" if is_last else "[1,2]\n[5,6]\n[7,8]\n")


def test_a_line_without_its_end_is_whole(tmp_path, caplog):
    file = tmp_path / "past.jsonl"
    file.write_text("[1,2]\n[3,4]")
    finish(past_drafter(suffix_decoding_file=str(file)), [1], [7, 8], 0)
    assert file.read_text() == "[1,2]\n[3,4]\n[7,8]\n"
    assert not caplog.records


def test_what_another_process_cuts_meanwhile_spoils_no_line(tmp_path):
    file = tmp_path / "past.jsonl"
    drafter = past_drafter(suffix_decoding_file=str(file))
    finish(drafter, [1], [7, 8], 0)
    with file.open("a") as lines:
        lines.write("[9,1")
    finish(drafter, [1], [5, 6], 1)
    assert file.read_text() == "[7,8]\n[9,1\n[5,6]\n"


def test_a_full_disk_leaves_whole_lines(tmp_path, caplog, monkeypatch):
    file = tmp_path / "past.jsonl"
    drafter = past_drafter(suffix_decoding_file=str(file))
    finish(drafter, [1], [7, 8], 0)

    class Full(io.FileIO):
        def write(self, data):
            return super().write(data[:3])

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, *_, **__: Full(self, "a+"))
        finish(drafter, [1], [30, 31, 32], 1)
    assert "kept in memory only" in caplog.text
    assert file.read_text() == "[7,8]\n"


def add_lines(file: str, first: int, num: int) -> None:
    """Many short-lived memories of one file, as of processes that come and go: each may shorten it."""
    for number in range(first, first + num):
        PastOutputs(8, 100, 10_000, 5000, Path(file)).add([number, 1, 2])


def test_two_processes_lose_nothing(tmp_path):
    file, each = tmp_path / "past.jsonl", 30
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(add_lines, [(str(file), 1000, each), (str(file), 2000, each)])
    numbers = sorted(json.loads(line)[0] for line in file.read_text().splitlines())
    assert numbers == [*range(1000, 1000 + each), *range(2000, 2000 + each)]


def test_no_line_is_lost_where_one_is_added_while_another_shortens_the_file(tmp_path, monkeypatch):
    file = tmp_path / "past.jsonl"
    file.write_text("".join(f"[{number},1,2]\n" for number in range(300)))
    writing = PastOutputs(8, 4, 1000, 5000, tmp_path / "past.jsonl")
    file.write_text("".join(f"[{number},1,2]\n" for number in range(300)))
    adder = threading.Thread(target=writing.add, args=([4000, 1, 2],))
    rewrite = past_outputs._rewrite

    def meanwhile(*arguments):
        adder.start()
        adder.join(0.05)  # it waits for the lock
        rewrite(*arguments)

    monkeypatch.setattr(past_outputs, "_rewrite", meanwhile)
    PastOutputs(8, 4, 1000, 5000, file)
    adder.join()
    assert file.read_text().splitlines()[-1] == "[4000,1,2]"
    assert len(file.read_text().splitlines()) == 5


@pytest.mark.parametrize("line", ["no json", "[1, 2, 100]", "[1, -2]", '{"a": 1}', "[1.5]", "[true]"])
def test_a_file_of_something_else_is_refused(tmp_path, line):
    file = tmp_path / "past.jsonl"
    file.write_text(f"[1, 2]\n{line}\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*0 to 99.*another file"):
        past_drafter(suffix_decoding_file=str(file))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be used: Is a directory; name another file"):
        past_drafter(suffix_decoding_file=str(tmp_path))
    (tmp_path / "past.jsonl").write_bytes(b"[1]\n\xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        past_drafter(suffix_decoding_file=str(tmp_path / "past.jsonl"))
    with pytest.raises(ConfigError, match="cannot be used: .*; name another file"):
        past_drafter(suffix_decoding_file=str(tmp_path / "past.jsonl" / "below.jsonl"))


def test_a_file_without_memory_is_refused():
    with pytest.raises(ConfigError, match="suffix_decoding_max_cached_requests is 0"):
        SuffixOptions(suffix_decoding_file="past.jsonl")


def test_a_draft_costs_no_more_in_a_longer_text():
    """Lines that run per drafted token, reading new tokens included."""
    rng = random.Random(0)
    words = [[rng.randrange(5000) for _ in range(rng.randrange(1, 9))] for _ in range(60)]
    tokens = [token for _ in range(800) for token in rng.choice(words)]
    lines = []
    for length in (400, 2800):
        drafter, view, num_drafted = SuffixDrafter(SuffixOptions(), 5000), View(tokens[:length]), 0
        drafter.start(view)
        proposal(drafter, view)

        def draft(drafter=drafter, view=view, length=length) -> None:
            nonlocal num_drafted
            for end in range(length + 1, length + 101):
                view.token_ids, view.kv_len = tokens[:end], end - 1
                (tree,) = drafter.propose([view], [Plan(1, 8, 8)])
                num_drafted += tree.num_drafted

        ran = lines_run(draft)
        assert num_drafted > 100
        lines.append(ran / num_drafted)
    assert lines[1] < 1.6 * lines[0], lines  # more matches to weigh, but not seven times as many
    assert lines[1] < 120, lines
