"""What a model may be called, what is said when it is not there, and that opening it is cheap."""

import json
import shutil
import subprocess
import sys

import httpx2
import pytest
from huggingface_hub import errors

from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.hub import is_hub_name
from foreword.errors import CheckpointError, DownloadError, ModelNotFoundError, UnsupportedModelError
from foreword.progress import terminal_progress
from tests.support.tiny_files import GGUF_SIZES, write_folder, write_gguf
from tests.support.tiny_llm import write_tiny_llm
from tests.support.tiny_models import TinyWeights, tiny_spec


@pytest.fixture
def weights():
    return TinyWeights(tiny_spec(**GGUF_SIZES))


def test_a_folder_with_one_gguf_is_that_gguf(tmp_path, weights):
    write_gguf(tmp_path / "a.gguf", weights)
    assert open_checkpoint(str(tmp_path), cache_dir=tmp_path).path == tmp_path / "a.gguf"
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    with pytest.raises(ModelNotFoundError, match=r"2 GGUF files; name one of them: a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path, cache_dir=tmp_path)


def test_a_gguf_needs_no_ending(tmp_path, weights):
    write_gguf(tmp_path / "model", weights)
    assert open_checkpoint(tmp_path / "model", cache_dir=tmp_path).spec.family == "llama"


def test_paths_that_hold_no_model_are_explained(tmp_path, weights):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"neither config\.json nor a \.gguf file"):
        open_checkpoint(tmp_path / "empty", cache_dir=tmp_path)
    (tmp_path / "notes.txt").write_text("hello there")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(tmp_path / "notes.txt", cache_dir=tmp_path)
    folder = write_folder(tmp_path / "folder", weights)
    with pytest.raises(UnsupportedModelError, match="weights only; give the folder"):
        open_checkpoint(folder / "model.safetensors", cache_dir=tmp_path)


def test_names_of_nothing_are_explained(tmp_path, weights):
    write_gguf(tmp_path / "real.gguf", weights)
    with pytest.raises(ModelNotFoundError, match=r"no such file or folder; .* holds real\.gguf; allowed: .*'default'"):
        open_checkpoint(str(tmp_path / "reel.gguf"), cache_dir=tmp_path)
    with pytest.raises(ModelNotFoundError, match="no model 'smollm'.*owner/name"):
        open_checkpoint("smollm", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("owner/name", True), ("Qwen/Qwen2.5-0.5B", True), ("owner/name/file-q4.gguf", True), ("name", False),
        ("/owner/name", False), ("./name", False), ("../name", False), ("a/b/c", False), ("folder/file.gguf", False),
    ],
)  # fmt: skip
def test_hub_ids_are_told_from_paths(name, is_one):
    assert is_hub_name(name) is is_one


def test_of_a_hub_model_only_the_files_that_are_read_are_fetched(tmp_path, weights, monkeypatch):
    folder = write_folder(tmp_path / "snapshot", weights)
    asked = {}

    def snapshot(repo, **options):
        bar = options.pop("tqdm_class")(total=10, unit="B", desc="model.safetensors")
        bar.update(4)
        bar.update(6)
        asked[repo] = options
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    reports = []
    checkpoint = open_checkpoint("owner/name", cache_dir=tmp_path, progress=lambda *report: reports.append(report))
    assert checkpoint.source == "owner/name"
    assert "model.safetensors" in asked["owner/name"]["allow_patterns"]
    assert not any(pattern in ("*", "*.bin", "*.safetensors") for pattern in asked["owner/name"]["allow_patterns"])
    assert reports == [("model.safetensors", 4, 10), ("model.safetensors", 10, 10)]


def test_one_gguf_of_a_hub_repository_can_be_named(tmp_path, weights, monkeypatch):
    path = write_gguf(tmp_path / "q8.gguf", weights)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda repo, name, **_: {("o/n", "q8.gguf"): path}[repo, name]
    )
    assert open_checkpoint("o/n/q8.gguf", cache_dir=tmp_path).source == "o/n/q8.gguf"


def response(status):
    return httpx2.Response(status, request=httpx2.Request("GET", "http://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            errors.RepositoryNotFoundError("x", response=response(404)),
            ModelNotFoundError,
            "no model 'o/n', or it is private",
        ),
        (errors.GatedRepoError("x", response=response(403)), ModelNotFoundError, "accept its terms"),
        (errors.LocalEntryNotFoundError("x"), ModelNotFoundError, "cannot be reached .*HF_HUB_OFFLINE"),
        (errors.OfflineModeIsEnabled("x"), ModelNotFoundError, "cannot be reached"),
        (errors.HFValidationError("bad id"), ModelNotFoundError, "no hub id: bad id"),
        (errors.HfHubHTTPError("x 503", response=response(503)), DownloadError, "x 503.*try again"),
        (httpx2.ConnectError("no route"), DownloadError, "no route"),
        (OSError("disk full"), DownloadError, "disk full"),
    ],
)
def test_errors_of_the_hub_say_what_to_do(tmp_path, monkeypatch, error, kind, words):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(kind, match=words):
        open_checkpoint("o/n", cache_dir=tmp_path)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_opening_imports_neither_torch_nor_transformers(tmp_path, weights, kind):
    path = (
        write_folder(tmp_path / "m", weights)
        if kind == "folder"
        else write_gguf(tmp_path / "m", weights, tokenizer=True)
    )
    program = (
        "import sys; from foreword.checkpoint import open_checkpoint; "
        "checkpoint = open_checkpoint(sys.argv[1], cache_dir=sys.argv[2]); checkpoint.spec, checkpoint.eos_token_ids; "
        "print(sorted({'torch', 'numpy', 'gguf', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(path), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_bars_are_drawn_on_stderr(capsys):
    with terminal_progress() as report:
        report("fetching", 5, 10)
        report("fetching", 10, 10)
    output = capsys.readouterr()
    assert output.out == ""
    assert "fetching" in output.err


def test_a_tokenizer_on_which_its_library_panics_is_a_damaged_file(tmp_path, capfd):
    """A panic of Rust is no `Exception`: it would end a program that catches all of these."""
    files = write_tiny_llm(tmp_path)
    path = files.target / "tokenizer.json"
    edited = json.loads(path.read_text())
    edited["model"]["continuing_subword_prefix"] = "longer than any token"
    path.write_text(json.dumps(edited))
    with pytest.raises(CheckpointError, match="the tokenizer of .* cannot be read: .*; the files are damaged"):
        _ = open_checkpoint(files.target, cache_dir=tmp_path / "cache").tokenizer
