"""A memory on disk: kills, damage, full disks, several processes, and that erased means gone."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from foreword.cli.main import main
from foreword.draft.memory import memory as memory_module
from foreword.draft.memory import memory_file
from foreword.draft.memory.memory import Memory
from foreword.draft.memory.memory_file import MemoryFile, forget, memories
from foreword.draft.memory.store import LEAST_BYTES, context_hashes
from foreword.errors import ConfigError

VOCAB_SIZE, MODEL = 500, "a model"
HABITS = [[1, 2, 3, 4], [11, 12, 13, 14], [21, 22, 23, 24]]


def memory_in(path: Path, model: str = MODEL, num_bytes: int = LEAST_BYTES) -> Memory:
    return Memory(num_bytes, VOCAB_SIZE, MemoryFile(path, model))


def known(memory: Memory) -> list[int]:
    """Which habits it knows."""
    return [
        i
        for i, h in enumerate(HABITS)
        if any(token == h[3] for token, _ in memory.store.after(context_hashes(h[:3])[-1]))
    ]


def taught(path: Path, *which: int) -> Memory:
    memory = memory_in(path)
    for habit in which:
        memory.learn(HABITS[habit], 0)
    return memory


def test_what_was_learned_is_there_the_next_time(tmp_path):
    path = tmp_path / "new folder" / "a.memory"
    memory = taught(path, 0, 2)
    memory.mixer.learn(0, (5,), 0.5, hit=True)
    memory.close()
    again = memory_in(path)
    assert known(again) == [0, 2]
    assert np.array_equal(again.store.rows, memory.store.rows)
    assert np.array_equal(again.mixer.state, memory.mixer.state)
    assert path.stat().st_size < 6000, "rows that are not taken take no room"
    if os.name == "posix":
        assert path.stat().st_mode & 0o077 == 0, "nobody else may read what was said"


def test_nothing_learned_is_nothing_written(tmp_path):
    memory_in(tmp_path / "a.memory").close()
    assert not (tmp_path / "a.memory").exists()


def test_a_flipped_bit_anywhere_is_noticed_told_and_ignored(tmp_path, caplog):
    path = tmp_path / "a.memory"
    taught(path, 0).close()
    data = path.read_bytes()
    for at in {*range(0, len(data), 97), *range(40), len(data) - 1}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        caplog.clear()
        memory = memory_in(path)
        assert known(memory) == []
        assert "is damaged" in caplog.text
        assert "learning begins anew" in caplog.text
        assert path.with_name("a.memory.damaged").exists()
    memory.learn(HABITS[1], 0)
    memory.close()
    assert known(memory_in(path)) == [1]


@pytest.mark.parametrize("left", [0, 1, 7, 100, -1])
def test_a_file_that_is_cut_is_ignored(tmp_path, left):
    path = tmp_path / "a.memory"
    taught(path, 0).close()
    path.write_bytes(path.read_bytes()[:left])
    assert known(memory_in(path)) == []


def test_another_models_and_another_versions_are_refused_and_stay(tmp_path, monkeypatch):
    path = tmp_path / "a.memory"
    taught(path, 0).close()
    with pytest.raises(ConfigError, match="is another model's; name another file, or erase it"):
        memory_in(path, "another")
    monkeypatch.setattr(memory_file, "_VERSION", "2")
    with pytest.raises(ConfigError, match="is of version 1, and this foreword reads 2"):
        memory_in(path)
    monkeypatch.undo()
    assert known(memory_in(path)) == [0]


def test_a_place_that_cannot_be_used_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used: .*name another file"):
        memory_in(tmp_path / "file" / "a.memory")


def test_a_file_keeps_its_size(tmp_path, caplog):
    path = tmp_path / "a.memory"
    taught(path, 0).close()
    larger = memory_in(path, num_bytes=4 * LEAST_BYTES)
    assert larger.store.rows.nbytes == LEAST_BYTES
    assert known(larger) == [0]
    assert "has 65536 bytes and keeps them" in caplog.text


def test_a_full_disk_is_told_once_and_spoils_neither_file_nor_memory(tmp_path, monkeypatch, caplog):
    path = tmp_path / "a.memory"
    taught(path, 0).close()
    memory = taught(path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    memory.close()
    assert "kept in this process only from now on" in caplog.text
    caplog.clear()
    memory.learn(HABITS[2], 0)
    memory.close()
    assert caplog.text == ""
    monkeypatch.undo()
    assert known(memory) == [0, 1, 2]
    assert known(memory_in(path)) == [0]
    assert not list(tmp_path.glob("*.part"))


def test_two_that_write_in_turn_lose_nothing(tmp_path):
    path = tmp_path / "a.memory"
    first, second = taught(path, 0), taught(path, 1)
    first.close()
    second.close()
    assert known(second) == [0, 1], "the second to write knows what the first has written"
    first.learn(HABITS[2], 0)
    first.close()
    assert known(first) == known(memory_in(path)) == [0, 1, 2]


_WRITER = """
import sys
from pathlib import Path
from tests.unit.test_memory_file import HABITS, memory_in
memory = memory_in(Path(sys.argv[1]))
while True:
    memory.learn(HABITS[int(sys.argv[2])], 0)
    memory.close()
    print("written", flush=True)
"""


def test_processes_that_are_killed_while_they_write_leave_a_whole_file(tmp_path):
    path, rng = tmp_path / "a.memory", random.Random(3)
    taught(path, 2).close()
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(habit)], stdout=subprocess.PIPE, text=True)
        for habit in (0, 1)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
    time.sleep(0.1 * rng.random())  # both go on writing
    for writer in writers:
        writer.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    memory = memory_in(path)
    assert known(memory) == [0, 1, 2]
    memory.learn(HABITS[0], 0)
    memory.close()
    assert not list(tmp_path.glob("*.part*")), "what the kills left is swept"
    assert not list(tmp_path.glob("*.damaged"))


def test_while_it_runs_it_is_written_now_and_then(tmp_path, monkeypatch):
    path = tmp_path / "a.memory"
    memory, other = taught(path, 0), taught(path, 1)
    memory.keep()
    assert not path.exists(), "a minute is not over"
    monkeypatch.setattr(memory_module, "_SAVE_EVERY_S", 0.0)
    other.close()
    memory.keep()
    assert memory._saving is not None
    memory._saving.join()
    assert known(memory_in(path)) == [0, 1]
    assert known(memory) == [0]
    memory.keep()
    assert known(memory) == [0, 1], "what the other one had written is taken in between two requests"


def test_erased_means_gone(tmp_path):
    path = tmp_path / "a.memory"
    taught(path, 0).close()
    running, late = taught(path, 1), taught(path, 2)
    path.with_name("a.memory.damaged").write_bytes(path.read_bytes())
    assert forget(path) > 0
    assert {file.name for file in tmp_path.iterdir()} <= {"a.memory.lock", "a.memory.forgotten"}
    running.close()
    assert not path.exists()
    assert known(running) == [], "it has dropped what it had"
    running.learn(HABITS[2], 0)
    running.close()
    late.close()
    assert known(late) == []
    assert known(memory_in(path)) == [2], "only what was learned afterwards"


def test_the_command_erases_all_in_the_cache_folder_or_the_one_that_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))
    folder, named = tmp_path / "cache" / "memory", tmp_path / "mine"
    for path in (folder / "x.memory", folder / "y.memory", named):
        taught(path, 0).close()
    running = taught(folder / "z.memory", 1)  # nothing of it is on disk yet
    assert memories(folder) == [folder / f"{name}.memory" for name in "xyz"]
    assert main(["forget"]) == 0
    assert "erased 2 memories, 0.0 MB: " in capsys.readouterr().out
    running.close()
    assert not list(folder.glob("*.memory"))
    assert main(["forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"erased": {}}
    assert main(["forget"]) == 0
    assert "nothing to erase" in capsys.readouterr().out
    assert named.exists()
    assert main(["forget", "--memory", str(named), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["erased"]) == [str(named)]
    assert not named.exists()
    assert main(["forget", "--memory", str(named)]) == 2
    assert "there is no memory" in capsys.readouterr().err
