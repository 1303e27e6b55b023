"""Prefixes that outlive the process: found by model and tokens, never another token for it."""

import errno
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from foreword.engine import block_folder, disk_prefixes
from foreword.engine.prefix_store import STORED_ROWS, PrefixStore
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from tests.support.toy_disk import ROW_BYTES, SavableToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_llm

pytestmark = pytest.mark.usefixtures("without_shape_checks")
TOKENIZER = byte_tokenizer("hello")
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
LONG = [(i * i + 3 * i) % 200 for i in range(300)]
FILE_BYTES = STORED_ROWS * ROW_BYTES + 56


def decoder_of(seed=0):
    return SavableToyDecoder(vocab_size=TOKENIZER.vocab_size, seed=seed)


def llm_of(folder, seed=0, drafter="none", **options):
    return toy_llm(decoder_of(seed), TOKENIZER, drafter, prompt_cache=folder, **options)


def answers(folder, prompts, params=PARAMS, **options):
    """Of a process that lives no longer than this; how many tokens of each prompt were found."""
    with llm_of(folder, **options) as llm:
        results = llm.generate(prompts, params)
    for result, prompt in zip(results, prompts, strict=True):
        assert result.token_ids == plain_tokens(decoder_of(options.get("seed", 0)), prompt, params)
    return [result.stats.cached_tokens for result in results]


def files(folder):
    return sorted(Path(folder).glob("*.rows"))


def test_a_prefix_survives_a_restart(tmp_path):
    assert answers(tmp_path, [LONG]) == [0]
    assert len(files(tmp_path)) == 305 // STORED_ROWS == 4
    assert answers(tmp_path, [LONG]) == [256]
    assert answers(tmp_path, [LONG[:256]]) == [192], "the last token is always read"
    assert answers(tmp_path, [[*LONG[:200], 1, 2, 3]]) == [192]
    assert answers(tmp_path, [LONG[1:]]) == [0]
    assert answers(tmp_path, [LONG[:64]]) == [0]


def test_a_conversation_goes_on_after_a_restart(tmp_path):
    prompt = LONG[:100]
    for turn in range(3):
        with llm_of(tmp_path) as llm:
            (result,) = llm.generate([prompt], SamplingParams(max_tokens=70, ignore_eos=True))
        assert result.stats.cached_tokens == (len(prompt) - 1) // 64 * 64 * (turn > 0)
        prompt = [*prompt, *result.token_ids, 7]
    assert len(files(tmp_path)) == (len(prompt) - 2) // 64, "a prefix that grows adds files, and writes none twice"


def test_the_disk_goes_on_where_the_memory_ends(tmp_path):
    answers(tmp_path, [LONG])
    with llm_of(tmp_path) as llm:
        llm.generate([LONG[:150]], PARAMS)
        (result,) = llm.generate([LONG], PARAMS)
        assert result.token_ids == plain_tokens(decoder_of(), LONG, PARAMS)
        assert result.stats.cached_tokens == 256
        seen = llm.snapshot()
        assert (seen.stored_tokens, seen.cached_tokens, seen.prefix_cache_hits) == (128 + 256 - 150, 128 + 256, 2)
        (again,) = llm.generate([LONG], PARAMS)
        assert again.stats.cached_tokens == 299, "the memory has more than the disk"


@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix", "lookahead", "recycling", "ngram,recycling"])
def test_a_batch_with_one_prefix_beside_others(tmp_path, drafter):
    greedy = SamplingParams(max_tokens=12, ignore_eos=True)
    sampled = replace(greedy, temperature=0.9, seed=4, n=2)
    prompts = [LONG[:150], [*LONG[:130], 5], [9, 9, 9, 9], [*LONG[:70], *LONG[:9]]]
    params = [greedy, sampled, greedy, sampled]
    with llm_of(tmp_path / "cold", drafter=drafter, batch_size=8) as llm:
        cold = [result.token_ids for result in llm.generate(prompts, params)]
    answers(tmp_path / "warm", [LONG[:150]])
    with llm_of(tmp_path / "warm", drafter=drafter, batch_size=8) as llm:
        results = llm.generate(prompts, params)
        assert [result.token_ids for result in results] == cold
        assert llm.snapshot().stored_tokens >= 128
        assert llm.engine.parts.target.cache.num_open == len(llm.engine.memory.prefixes)


def test_saving_waits_for_no_close(tmp_path):
    with llm_of(tmp_path) as llm:
        llm.generate([LONG], PARAMS)
        wait_until(lambda: len(files(tmp_path)) == 4)
        llm.generate([LONG[::-1]], PARAMS)
        wait_until(lambda: len(files(tmp_path)) == 8)


def test_while_requests_run_saving_takes_a_small_share_of_the_time(tmp_path):
    now = [0.0]
    llm = llm_of(tmp_path)
    disk = llm.engine.memory.disk
    disk._now_s = lambda: now[0]
    write = disk.store.write
    disk.store.write = lambda *args: (now.__setitem__(0, now[0] + 1.0), write(*args))[1]
    engine = llm.engine
    engine.add(llm._prepare([LONG], PARAMS, None)[0].request(0))
    while engine.step():
        pass
    assert engine.save(is_idle=False)
    assert not engine.save(is_idle=False)
    now[0] += 49.0
    assert not engine.save(is_idle=False)
    now[0] += 1.5
    assert engine.save(is_idle=False)
    assert len(files(tmp_path)) == 2
    assert engine.save(is_idle=True)
    assert engine.save(is_idle=True)
    assert not engine.save(is_idle=True)
    assert len(files(tmp_path)) == 4


def test_a_server_that_never_rests_saves_too(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_prefixes, "_BUSY_SHARE", 1)
    with llm_of(tmp_path) as llm:
        stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=4000, ignore_eos=True))
        next(stream)
        llm.generate([LONG], PARAMS)
        wait_until(lambda: len(files(tmp_path)) == 4)
        assert llm.snapshot().num_running == 1
        stream.close()


def test_others_go_on_while_a_long_prefix_is_loaded(tmp_path):
    long = [(i * 7 + i // 9) % 200 for i in range(64 * 30 + 1)]
    answers(tmp_path, [long])
    llm = llm_of(tmp_path)
    engine = llm.engine
    other, loading = [llm._prepare([p], SamplingParams(max_tokens=40), None)[0].request(0) for p in ([3], long)]
    engine.add(other)
    engine.step()
    engine.add(loading)
    for _ in range(3):  # eight blocks a step
        before = len(other.token_ids)
        engine.step()
        assert len(other.token_ids) == before + 1
    assert (loading.kv_len, loading.new_ids) == (3 * 8 * 64, [])
    while engine.step():
        pass
    assert loading.stats.cached_tokens == 30 * 64
    assert loading.new_ids == plain_tokens(decoder_of(), long, SamplingParams(max_tokens=40), (TOKENIZER.eos_token_id,))


def test_a_request_that_goes_away_while_it_loads_leaves_nothing(tmp_path):
    long = [(i * 7 + i // 9) % 200 for i in range(64 * 30 + 1)]
    answers(tmp_path, [long])
    llm = llm_of(tmp_path)
    engine = llm.engine
    other, loading = [llm._prepare([p], SamplingParams(max_tokens=40), None)[0].request(0) for p in ([3], long)]
    for request in (other, loading):
        engine.add(request)
    engine.step()
    assert engine.memory.is_loading(loading)
    engine.abort(loading)
    assert not engine.memory.is_loading(loading)
    assert engine.parts.target.cache.num_open == 1
    while engine.step():
        pass
    assert engine.parts.target.cache.num_open == 1  # what `other` left


def test_memory_that_is_short_ends_the_loading_and_not_the_request(tmp_path):
    answers(tmp_path, [LONG])
    rows = 310
    with llm_of(tmp_path, kv_cache_bytes=rows * ROW_BYTES, batch_size=3) as llm:
        prompts = [LONG, LONG[:200], [*LONG[:100], 4]]
        for result, prompt in zip(llm.generate(prompts, PARAMS), prompts, strict=True):
            assert result.token_ids == plain_tokens(decoder_of(), prompt, PARAMS)
            assert llm.engine.parts.target.cache.num_bytes <= rows * ROW_BYTES


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: bytes([data[0] ^ 1]) + data[1:],  # magic
        lambda data: data[:8] + b"\2" + data[9:],  # version
        lambda data: data[:20] + bytes([data[20] ^ 128]) + data[21:],  # digest
        lambda data: data[:44] + bytes([data[44] ^ 1]) + data[45:],  # number of bytes
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],  # a row
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # checksum
        lambda data: b"\0" * len(data),
    ],
    ids=["short", "cut", "empty", "long", "magic", "version", "digest", "size", "row", "checksum", "zeros"],
)
def test_a_damaged_file_is_removed_and_said_once(tmp_path, caplog, damage):
    answers(tmp_path, [LONG])
    whole = {path: path.read_bytes() for path in files(tmp_path)}
    for path in files(tmp_path):
        path.write_bytes(damage(path.read_bytes()))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert answers(tmp_path, [LONG]) == [0]
    told = [record.message for record in caplog.records if "is damaged" in record.message]
    assert len(told) == 1
    assert str(tmp_path) in told[0]
    assert whole.items() <= {path: path.read_bytes() for path in files(tmp_path)}.items(), "written anew"
    assert answers(tmp_path, [LONG]) == [256]


def test_one_damaged_block_costs_what_comes_after_it(tmp_path):
    answers(tmp_path, [LONG])
    with llm_of(tmp_path) as llm:
        third = llm.engine.memory.disk.store.digests(LONG, len(LONG))[2].hex()
        (tmp_path / f"{third}.rows").write_bytes(b"nothing")
        (result,) = llm.generate([LONG], PARAMS)
        assert result.stats.cached_tokens == 128
        assert result.token_ids == plain_tokens(decoder_of(), LONG, PARAMS)


def test_a_file_under_another_name_is_not_trusted(tmp_path):
    answers(tmp_path, [LONG])
    with llm_of(tmp_path) as llm:
        store = llm.engine.memory.disk.store
        other = store.digests(LONG[::-1], 64)[0].hex()
        files(tmp_path)[0].rename(tmp_path / f"{other}.rows")
        (result,) = llm.generate([LONG[::-1]], PARAMS)
    assert result.stats.cached_tokens == 0
    assert result.token_ids == plain_tokens(decoder_of(), LONG[::-1], PARAMS)


def test_another_model_finds_nothing(tmp_path):
    answers(tmp_path, [LONG])
    assert answers(tmp_path, [LONG], seed=1) == [0]
    assert len(files(tmp_path)) == 8
    assert answers(tmp_path, [LONG]) == answers(tmp_path, [LONG], seed=1) == [256]


def test_the_bound_holds_and_what_was_used_last_stays(tmp_path):
    bound = 12 * FILE_BYTES
    prompts = [[i, *LONG] for i in range(6)]
    with llm_of(tmp_path, prompt_cache_bytes=bound) as llm:
        for prompt in prompts:
            llm.generate([prompt], PARAMS)
            wait_until(lambda: all(region.is_saved for region in list(llm.engine.memory.prefixes.finished)))
            assert sum(path.stat().st_size for path in files(tmp_path)) <= bound
    assert answers(tmp_path, [prompts[5]], prompt_cache_bytes=bound) == [256]
    assert answers(tmp_path, [prompts[0]], prompt_cache_bytes=bound) == [0]


def test_what_makes_way_is_the_end_of_a_prefix_first(tmp_path):
    bound = 9 * FILE_BYTES
    answers(tmp_path, [LONG], prompt_cache_bytes=bound)
    time.sleep(0.01)
    answers(tmp_path, [LONG[::-1]], prompt_cache_bytes=bound)
    time.sleep(0.01)
    answers(tmp_path, [[7, *LONG[:200]]], prompt_cache_bytes=bound)  # three more blocks: two of LONG's go
    assert answers(tmp_path, [LONG], prompt_cache_bytes=bound)[0] in (64, 128)


def test_a_prefix_longer_than_the_folder_keeps_its_beginning(tmp_path):
    long = [(i * 7 + i // 9) % 200 for i in range(64 * 30 + 1)]
    answers(tmp_path, [long], prompt_cache_bytes=8 * FILE_BYTES)
    assert answers(tmp_path, [long], prompt_cache_bytes=8 * FILE_BYTES) == [6 * 64]


def test_files_of_others_are_left_alone(tmp_path):
    mine = [tmp_path / name for name in ("mine.txt", "table.rows", "film.part", "ab.rows.part", f"{'ab' * 32}.rows~")]
    for path in mine:
        path.write_text("x" * 10_000)
        os.utime(path, (1, 1))
    for prompt in (LONG, LONG[::-1]):
        with llm_of(tmp_path, prompt_cache_bytes=5 * FILE_BYTES) as llm:
            llm.generate([prompt], PARAMS)
    assert [path.stat().st_size for path in mine] == [10_000] * len(mine)
    assert answers(tmp_path, [LONG[::-1]]) == [192], "they take no part of the bound"


def test_a_full_disk_is_said_once_and_the_engine_goes_on(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    answers(tmp_path, [LONG])
    with monkeypatch.context() as patch:
        patch.setattr(block_folder.os, "fdopen", full)
        assert answers(tmp_path, [LONG[::-1], LONG[:150]]) == [0, 128]
    told = [record.message for record in caplog.records if "No space left" in record.message]
    assert len(told) == 1
    assert len(files(tmp_path)) == len(list(tmp_path.iterdir())) == 4, "no part is left"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(tmp_path, caplog):
    check_read_only(tmp_path, caplog, lambda folder: folder.chmod(0o500), lambda folder: folder.chmod(0o700))


def test_a_folder_that_is_read_only_whoever_asks(tmp_path, caplog, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EROFS, "Read-only file system")

    def lock(_):
        for name in ("open", "utime", "unlink", "mkdir"):
            monkeypatch.setattr(block_folder.os, name, refuse)

    check_read_only(tmp_path, caplog, lock, lambda _: monkeypatch.undo())


def check_read_only(folder, caplog, lock, unlock):
    answers(folder, [LONG])
    lock(folder)
    try:
        assert answers(folder, [LONG, LONG[::-1]]) == [256, 0]
    finally:
        unlock(folder)
    assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1
    assert len(files(folder)) == 4


def test_a_folder_that_cannot_be_made(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert answers(tmp_path / "file" / "folder", [LONG]) == [0]
    assert "cannot be written" in caplog.text


def test_folder_and_files_are_for_their_owner_alone(tmp_path):
    folder = tmp_path / "deep" / "cache"
    answers(folder, [LONG])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(folder)} == {0o600}


def test_two_engines_share_a_folder(tmp_path):
    with llm_of(tmp_path) as one, llm_of(tmp_path) as other:
        one.generate([LONG], PARAMS)
        wait_until(lambda: len(files(tmp_path)) == 4)
        (result,) = other.generate([LONG], PARAMS)
        assert result.stats.cached_tokens == 256
        other.generate([LONG[::-1]], PARAMS)
        wait_until(lambda: len(files(tmp_path)) == 8)
        assert one.generate([LONG[::-1]], PARAMS)[0].stats.cached_tokens == 256


def test_what_another_process_wrote_counts_for_the_bound(tmp_path):
    bound = 6 * FILE_BYTES
    with llm_of(tmp_path, prompt_cache_bytes=bound) as one, llm_of(tmp_path, prompt_cache_bytes=bound) as other:
        for i in range(6):
            for llm in (one, other):
                llm.generate([[i, int(llm is one), *LONG[:150]]], PARAMS)
                wait_until(lambda llm=llm: all(r.is_saved for r in list(llm.engine.memory.prefixes.finished)))
                assert sum(path.stat().st_size for path in files(tmp_path)) <= bound


WRITER = """
import sys
from pathlib import Path
from foreword.engine.block_folder import BlockFolder
folder = BlockFolder(Path(sys.argv[1]), "[0-9]+.rows", 1 << 26)
print("ready", flush=True)
for turn in range(10**9):
    assert folder.write(f"{turn % 100}.rows", [bytes([turn % 100]) * (1 << 20)], 10**18 + turn, 0)
"""


def test_a_kill_in_a_write_leaves_whole_files(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == b"ready\n"
    time.sleep(0.02)
    for writer in writers:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert files(tmp_path)
    for path in files(tmp_path):
        assert path.read_bytes() == bytes([int(path.stem)]) * (1 << 20)


def test_what_killed_writers_left_counts_and_goes_after_a_day(tmp_path):
    part = tmp_path / f"{'ab' * 32}.rows.0123456789abcdef.part"
    part.write_bytes(b"x" * 3 * FILE_BYTES)
    store = PrefixStore(tmp_path, b"key", STORED_ROWS * ROW_BYTES, 4 * FILE_BYTES)
    assert store.num_bytes == 3 * FILE_BYTES
    long_ago = time.time() - 2 * 86400
    os.utime(part, (long_ago, long_ago))
    PrefixStore(tmp_path, b"key", STORED_ROWS * ROW_BYTES, 4 * FILE_BYTES)
    assert not part.exists()


def test_an_engine_that_ended_by_a_fault_saves_nothing(tmp_path, monkeypatch):
    llm = llm_of(tmp_path)
    monkeypatch.setattr(type(llm.engine), "save", lambda *_, **__: False)
    llm.generate([LONG], PARAMS)
    monkeypatch.setattr(llm._loop, "_hand_over", lambda: 1 / 0)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        llm.generate([LONG], PARAMS)
    llm._loop._thread.join()
    assert files(tmp_path) == []


def test_a_request_that_was_aborted_or_failed_is_not_saved(tmp_path):
    with llm_of(tmp_path) as llm:
        stream = llm.stream(LONG, SamplingParams(max_tokens=1000, ignore_eos=True))
        next(stream)
        stream.close()
    assert files(tmp_path) == []


def test_a_load_that_fails_ends_its_request_alone(tmp_path, monkeypatch):
    answers(tmp_path, [LONG])
    with llm_of(tmp_path) as llm:
        engine = llm.engine
        bad, good = [llm._prepare([p], PARAMS, None)[0].request(0) for p in (LONG, [3, 4])]
        monkeypatch.setattr(type(engine.parts.target.cache), "load_rows", lambda *_: 1 / 0)
        for request in (bad, good):
            engine.add(request)
        while engine.step():
            pass
    assert isinstance(bad.error, ZeroDivisionError)
    assert good.new_ids == plain_tokens(decoder_of(), [3, 4], PARAMS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_fork_while_something_is_saved(tmp_path, monkeypatch):
    llm = llm_of(tmp_path)
    store = llm.engine.memory.disk.store
    is_saving, may_go_on, write = threading.Event(), threading.Event(), store.write
    monkeypatch.setattr(store, "write", lambda *args: (is_saving.set(), may_go_on.wait(20), write(*args))[2])
    llm.generate([LONG], PARAMS)
    assert is_saving.wait(20)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            may_go_on.set()
            (result,) = llm.generate([LONG], PARAMS)
            assert result.token_ids == plain_tokens(decoder_of(), LONG, PARAMS)
            code = 0 if result.stats.cached_tokens == 299 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    may_go_on.set()
    llm.close()
    assert len(files(tmp_path)) == 4


def test_prompt_logprobs_read_everything(tmp_path):
    answers(tmp_path, [LONG])
    with llm_of(tmp_path) as llm:
        (result,) = llm.generate([LONG], SamplingParams(max_tokens=2, prompt_logprobs=0))
    assert result.stats.cached_tokens == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_cache": 3}, "prompt_cache is 3; allowed: the path of a folder, or None"),
        ({"prompt_cache": " "}, "prompt_cache is ' '"),
        ({"prompt_cache": __file__}, "is no folder"),
        ({"prompt_cache": "x", "prefix_cache": False}, "prefix_cache is off"),
        (
            {"prompt_cache": "x", "prompt_cache_bytes": 0},
            "prompt_cache_bytes is 0; allowed: a whole number, 1 or above",
        ),
        ({"prompt_cache": "x", "prompt_cache_bytes": 700}, "64 tokens of this model take 512; allowed: at least 2048"),
    ],
)
def test_options_that_are_wrong(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        toy_llm(decoder_of(), TOKENIZER, "none", **options)


def test_a_verifier_for_which_drafts_matter_does_without(tmp_path, caplog):
    with llm_of(tmp_path, drafter="recycling", verifier="rejection") as llm:
        assert llm.engine.memory.disk is None
        llm.generate([LONG], PARAMS)
    assert "is not used: drafter recycling with verifier rejection" in caplog.text
    assert files(tmp_path) == []


def test_a_cache_whose_rows_cannot_be_kept(tmp_path, caplog):
    from tests.support.toy_decoder import ToyDecoder

    with toy_llm(ToyDecoder(vocab_size=TOKENIZER.vocab_size), TOKENIZER, "none", prompt_cache=tmp_path) as llm:
        (result,) = llm.generate([LONG], PARAMS)
    assert result.token_ids == plain_tokens(decoder_of(), LONG, PARAMS)
    assert "is not used: models that transformers computes" in caplog.text


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_end_has_a_bound_of_its_own(tmp_path, monkeypatch):
    llm = llm_of(tmp_path)
    monkeypatch.setattr(disk_prefixes, "_MOST_CLOSING_S", -1.0)
    monkeypatch.setattr(type(llm.engine), "save", lambda *_, **__: False)
    llm.generate([LONG], PARAMS)
    llm.close()
    assert files(tmp_path) == []
