"""Profile files: the fastest drafter and settings that were found for a model on a machine.

    {"foreword_profile": 1, "made": "2026-11-29T12:00:00+00:00",
     "model": {"source": ..., "fingerprint": ..., "num_parameters": ...},
     "machine": "5f0c...", "runtime": "native", "dtype": "int8", "kv_dtype": "bfloat16",
     "isa": "avx2", "threads": 2,
     "drafter": {"method": "suffix", "num_speculative_tokens": 8}, "policy": "fixed",
     "measured": {...}}

`foreword tune` writes one, `--profile` and `LLM(profile=...)` read it. It belongs to one model: another one is refused.
It holds what was fastest on one machine: on another the drafter is used, with a warning, but not its runtime and
threads. Explicit options have priority over the file.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foreword.draft.draft_config import DraftConfig, parse_draft_config
from foreword.engine.machine_key import machine_key
from foreword.errors import ConfigError
from foreword.files import write_whole
from foreword.target.load_model import LoadedModel

logger = logging.getLogger(__name__)

VERSION = 1
_LOAD_OPTIONS = ("runtime", "dtype", "kv_dtype", "threads")
_TYPES: dict[str, tuple[type, ...]] = {
    "made": (str,),
    "model": (dict,),
    "machine": (str,),
    "runtime": (str,),
    "dtype": (str,),
    "kv_dtype": (str,),
    "isa": (str,),
    "threads": (int, type(None)),
    "drafter": (dict,),
    "policy": (str,),
    "measured": (dict,),
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a file says."""

    made: str  # date and time
    model: Mapping[str, Any]  # source, fingerprint, num_parameters
    machine: str
    runtime: str
    dtype: str
    kv_dtype: str
    isa: str  # the native runtime's instruction set; empty for the others
    threads: int | None
    drafter: Mapping[str, Any]  # as `speculative_config`
    policy: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    path: str = "the profile"  # for messages; no part of the file

    @property
    def draft_config(self) -> DraftConfig:
        """The drafter and its settings."""
        try:
            return parse_draft_config(self.drafter)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def load_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options of `load_model`: the given ones, and those of the file where nothing is asked for.

        Nothing of the file on another machine: it may have neither the runtime nor the threads.
        """
        options = dict(given)
        if self.machine != machine_key():
            return options
        if all(options.get(name) in (None, "auto") for name in ("runtime", "dtype", "device")):
            options |= {"runtime": self.runtime, "dtype": self.dtype}
        if options.get("threads") is None and self.threads is not None:
            options["threads"] = self.threads
        if (
            self.runtime == "native"
            and options.get("runtime") == "native"
            and options.get("kv_dtype") in (None, "auto")
        ):
            options["kv_dtype"] = self.kv_dtype
        if self.isa and options.get("runtime") == "native" and options.get("isa") in (None, "auto"):
            options["isa"] = self.isa
        return options

    def check_model(self, model: LoadedModel) -> None:
        """`ConfigError` for another model than the file's; a warning for another machine, or way of running it."""
        found = model_facts(model)
        if found["fingerprint"] != self.model.get("fingerprint"):
            raise ConfigError(
                f"{self.path} was made for {self.model.get('source')} (fingerprint {_short(self.model)}), and this is "
                f"{found['source']} ({_short(found)}): what is faster for one model says nothing about another. Name its model, or "
                f"make a profile for this one with 'foreword tune'"
            )
        if self.machine != machine_key():
            logger.warning(
                "%s was measured on another machine: its drafter is used, but another may be faster here; 'foreword tune' measures it",
                self.path,
            )
            return
        here = (model.choice.name, model.choice.dtype)
        if here != (self.runtime, self.dtype):
            logger.warning(
                "%s was measured with %s %s, and this runs on %s %s: its figures do not hold here",
                self.path, self.runtime, self.dtype, *here,
            )  # fmt: skip


def model_facts(model: LoadedModel) -> dict[str, Any]:
    """What names a model in a profile. One that transformers holds has no fingerprint but its name and size."""
    checkpoint = model.checkpoint
    size = checkpoint.spec.num_parameters
    fingerprint = getattr(checkpoint, "fingerprint", None) or f"{checkpoint.source}/{size}"
    return {"source": checkpoint.source, "fingerprint": fingerprint, "num_parameters": size}


def read_profile(path: str | Path) -> Profile:
    """The profile in a file; `ConfigError` says what is wrong with it."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the profile {path} cannot be read: {error.strerror or error}; 'foreword tune --out {path}' makes one"
        ) from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8
        raise ConfigError(f"the profile {path} is not JSON ({error}); 'foreword tune --out FILE' makes one") from error
    version = found.get("foreword_profile") if isinstance(found, dict) else None
    if version is None:
        raise ConfigError(f"{path} is no profile of foreword; 'foreword tune --out FILE' makes one")
    if version != VERSION:
        raise ConfigError(
            f"{path} is a profile of format {version!r}, and this foreword reads {VERSION}; make it again with 'foreword tune'"
        )
    found.setdefault("isa", "")  # files of earlier versions do not say it
    for name, types in _TYPES.items():
        if name not in found:
            raise ConfigError(
                f"the profile {path} is incomplete: {name!r} is missing; make it again with 'foreword tune'"
            )
        if type(found[name]) not in types:
            allowed = " or ".join(t.__name__ for t in types).replace("NoneType", "null").replace("dict", "an object")
            raise ConfigError(f"the profile {path}: {name} is {found[name]!r}; allowed: {allowed}")
    profile = Profile(path=str(path), **{name: found[name] for name in _TYPES})
    _ = profile.draft_config  # refused now, not once a model is loaded
    return profile


def write_profile(path: Path, profile: Profile) -> None:
    """As a small file for people and programs."""
    facts = asdict(profile)
    del facts["path"]
    write_whole(path, json.dumps({"foreword_profile": VERSION} | facts, indent=2) + "\n")


def _short(model: Mapping[str, Any]) -> str:
    name = str(model.get("fingerprint"))
    return name if len(name) <= 40 else f"{name[:12]}..."
