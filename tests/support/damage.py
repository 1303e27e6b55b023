"""Random damage to the files of tiny models and drafters, and what came of it. Everything follows from a number.

The outcome of opening damaged files and generating a few tokens is one of

    refused    one error of foreword's, in one line
    same       the tokens of the whole files: the damage did not matter
    value      other tokens, where a value in config.json or in a GGUF's metadata became another sensible value, so that
               the files describe another model: nothing can tell
    fault      anything else: another exception, an error of several lines, or silently other tokens

Weights of a model themselves are left alone, as a changed weight is a changed model; a drafter's are not.
"""

import json
import logging
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.gguf_header import read_gguf_header
from foreword.config import ModelSpec
from foreword.engine.llm import LLM
from foreword.errors import ForewordError
from foreword.runtime.select import native_problem
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import LoadedModel, load_model
from tests.support.medusa_heads import legacy_names, random_heads, save_heads, vllm_config
from tests.support.tiny_chat import write_tiny_chat
from tests.support.tiny_files import write_folder
from tests.support.tiny_llm import write_tiny_llm
from tests.support.tiny_models import TinyWeights

PROMPT = [5, 9, 4]
PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)
CHAT = [{"role": "user", "content": "ab"}]
NONSENSE: list[Any] = [
    None, "", "abc", "x" * 5000, -1, 0, 1, 1.5, 10**400, float("nan"), float("inf"), True, [], [1], {}, {"a": {"b": []}},
]  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """Something that is damaged."""

    name: str
    path: Path  # a folder, or a file
    drafter: str | None = None  # the method, where it is a drafter


@dataclass(frozen=True)
class Outcome:
    """What came of one damage."""

    kind: str  # "refused", "same", "value" or "fault"
    what: str  # the damage, for people
    message: str = ""


class Workshop:
    """Whole files of every kind, what they say, and a place to break copies of them.

    Args:
        folder: an empty one; everything lies in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._cache = folder, folder / "cache"
        tiny = write_tiny_llm(folder / "whole")
        self._target = load_model(tiny.target, runtime="torch", threads=1, cache_dir=self._cache)
        spec = self._target.decoder.spec
        shards = write_folder(folder / "shards", TinyWeights(spec, seed=4, logit_scale=2.5), num_shards=2)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny.target / name, shards)
        heads = random_heads(spec, seed=9)
        pickled = save_heads(folder / "pickled", vllm_config(spec, heads), legacy_names(heads), "medusa_lm_head.pt")
        self.subjects = [
            Subject("folder", tiny.target),
            Subject("shards", shards),
            Subject("gguf", write_tiny_chat(folder / "gguf")),
            Subject("draft_model", tiny.draft, "draft_model"),
            Subject("eagle", tiny.eagle, "eagle2"),
            Subject("eagle3", tiny.eagle3, "eagle3"),
            Subject("eagle3 reduced", tiny.eagle3_reduced, "eagle3"),
            Subject("medusa", tiny.medusa, "medusa"),
            Subject("medusa reduced", tiny.medusa_reduced, "medusa"),
            Subject("medusa pickled", pickled, "medusa"),
            Subject("ngram_lm", tiny.ngram_lm, "ngram_lm"),
        ]
        self._runtimes = ("torch",) if native_problem() else ("torch", "native")
        self._whole: dict[tuple[str, str], tuple[list[int], ModelSpec]] = {}

    def outcome(self, number: int) -> Outcome:
        """Break a copy as the number says, open it, generate."""
        rng = random.Random(number)
        subject = rng.choice(self.subjects[:3] if rng.random() < 0.5 else self.subjects[3:])
        runtime = rng.choice(self._runtimes)
        whole = self._said(subject, runtime)
        copy = self._folder / "broken" / subject.path.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        copy.parent.mkdir()
        (shutil.copytree if subject.path.is_dir() else shutil.copy)(subject.path, copy)
        what = f"{subject.name} on {runtime}: {damage(copy, rng, spares_weights=subject.drafter is None)}"
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            tokens, spec = self._run(Subject(subject.name, copy, subject.drafter), runtime)
        except ForewordError as error:
            kind = "fault" if "\n" in str(error) or not str(error) else "refused"
            return Outcome(kind, what, str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            return Outcome("fault", what, f"{type(error).__name__}: {error}")
        finally:
            logging.disable(level)
        if tokens == whole[0]:
            return Outcome("same", what)
        is_value = subject.drafter is None and spec != whole[1]
        return Outcome("value" if is_value else "fault", what, f"{tokens} instead of {whole[0]}")

    def _said(self, subject: Subject, runtime: str) -> tuple[list[int], ModelSpec]:
        key = ("" if subject.drafter else subject.name, runtime)
        if key not in self._whole:
            self._whole[key] = self._run(subject, runtime)
        return self._whole[key]

    def _run(self, subject: Subject, runtime: str) -> tuple[list[int], ModelSpec]:
        """Tokens, and what the model is."""
        if subject.drafter is not None:
            llm = LLM(self._target, f"{subject.drafter}={subject.path}")
        else:
            checkpoint = open_checkpoint(subject.path, cache_dir=self._cache)
            tokenizer = checkpoint.tokenizer
            tokenizer.decode(tokenizer.encode("ab cd"))
            if tokenizer.has_chat_template:
                tokenizer.apply_chat_template(CHAT)
            llm = LLM(self._load(subject.path, runtime), "none")
        return llm.generate([PROMPT], PARAMS)[0].token_ids, llm.model.decoder.spec

    def _load(self, path: Path, runtime: str) -> LoadedModel:
        return load_model(path, runtime=runtime, threads=1, cache_dir=self._cache)


def damage(path: Path, rng: random.Random, *, spares_weights: bool) -> str:
    """Change one file; returns what was done."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    file = rng.choice(files)
    length = header_len(file)
    ways: dict[str, Callable[[], str]] = {
        "cut": lambda: _cut(file, rng),
        "flip": lambda: _flip(file, rng, length if spares_weights else file.stat().st_size),
        "bytes": lambda: _replace_bytes(file, rng, length if spares_weights else file.stat().st_size),
        "whole": lambda: _replace_file(file, rng),
    }
    if file.suffix in (".json", ".safetensors"):
        ways["key"] = lambda: _edit_key(file, rng)
    name = rng.choice([*ways, *(["key"] * 3 if "key" in ways else ["flip"] * 2)])
    return f"{file.name}, {name}: {ways[name]()}"


def header_len(file: Path) -> int:
    """Bytes before the weights."""
    if file.suffix == ".safetensors":
        return 8 + int.from_bytes(file.read_bytes()[:8], "little")
    if file.suffix == ".gguf":
        return min(tensor.begin for tensor in read_gguf_header(file).tensors.values())
    return file.stat().st_size


def _cut(file: Path, rng: random.Random) -> str:
    data = file.read_bytes()
    length = rng.choice([0, 1, 8, len(data) - 1, rng.randrange(len(data)), rng.randrange(len(data))])
    file.write_bytes(data[:length])
    return f"{length} of {len(data)} bytes"


def _flip(file: Path, rng: random.Random, end: int) -> str:
    data = bytearray(file.read_bytes())
    places = [(rng.randrange(end), rng.randrange(8)) for _ in range(rng.choice([1, 1, 1, 3]))]
    for place, bit in places:
        data[place] ^= 1 << bit
    file.write_bytes(data)
    return ", ".join(f"bit {bit} of byte {place}" for place, bit in places)


def _replace_bytes(file: Path, rng: random.Random, end: int) -> str:
    """Some bytes by others, in the header by as many: what follows stays where it was."""
    data = bytearray(file.read_bytes())
    length = min(rng.choice([1, 2, 4, 8]), end)
    place = rng.randrange(end - length + 1)
    new = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])
    data[place : place + length] = new
    file.write_bytes(data)
    return f"{length} bytes at {place} by {new.hex()}"


def _replace_file(file: Path, rng: random.Random) -> str:
    what = rng.choice(["gone", "empty", "noise", "text", "deep", "a folder"])
    file.unlink()
    if what == "a folder":
        file.mkdir()
    elif what != "gone":
        content = {"empty": b"", "noise": rng.randbytes(500), "text": b"<html>404</html>\n", "deep": b"[" * 100_000}[
            what
        ]
        file.write_bytes(content)
    return what


def _edit_key(file: Path, rng: random.Random) -> str:
    """A key of a JSON file, or of a safetensors header: gone, renamed, or with a senseless value."""
    data = file.read_bytes()
    is_header = file.suffix == ".safetensors"
    end = header_len(file)
    table: Any = json.loads(data[8:end] if is_header else data)
    places = [(owner, key) for owner, key in _places(table)]
    owner, key = rng.choice(places)
    value = rng.choice(NONSENSE)
    what = rng.choice(["gone", "value", "value", "value", *(["renamed"] if isinstance(owner, dict) else [])])
    if what == "value":
        owner[key] = value
    else:
        old = owner.pop(key)
        if what == "renamed":
            owner[f"{key}_"] = old
    text = json.dumps(table).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[end:] if is_header else text)
    return f"{key!r} {what}" + (f" {repr(value)[:20]}" if what == "value" else "")


def _places(table: Any) -> list[tuple[Any, Any]]:
    """Owner and key of everything inside, however deep; long lists count by their first entries."""
    found: list[tuple[Any, Any]] = []
    entries = table.items() if isinstance(table, dict) else enumerate(table[:3]) if isinstance(table, list) else ()
    for key, value in list(entries):
        found += [(table, key), *_places(value)]
    return found
