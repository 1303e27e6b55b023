"""From the arguments of an `LLM` to its engine: first everything is checked, then the model is loaded."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foreword.config import STEADY_METHOD
from foreword.draft.base import Drafter
from foreword.draft.draft_config import DraftConfig, draft_config
from foreword.draft.make_drafter import make_drafter
from foreword.engine.compatibility import check_pair
from foreword.engine.disk_prefixes import DiskPrefixes, open_disk
from foreword.engine.engine import Engine
from foreword.engine.kv_budget import kv_budget
from foreword.engine.policy import check_policy, make_controller
from foreword.engine.profile_file import Profile, read_profile
from foreword.engine.step import StepParts
from foreword.errors import ConfigError
from foreword.target.load_model import LoadedModel, check_model_name, load_model
from foreword.target.target import Target
from foreword.verify.base import Matching, Verifier, make_verifier

logger = logging.getLogger(__name__)

_LEAST_ROWS = 2  # of keys and values: one token of a prompt, one of the answer

_LOAD_DEFAULTS: dict[str, Any] = {
    "runtime": "auto",
    "dtype": "auto",
    "device": "auto",
    "kv_dtype": "auto",
    "isa": "auto",
    "threads": None,
    "share_weights": False,
    "cache_dir": None,
    "show_progress": False,
}


@dataclass(frozen=True)
class Settings:
    """What an `LLM` was asked for, checked, before anything is loaded."""

    model: str | Path | LoadedModel | None
    config: DraftConfig
    policy: str
    verifier: Verifier
    batch_size: int
    max_queue: int | None
    prefix_cache: bool
    kv_cache_bytes: int | None
    prompt_cache: Path | None
    prompt_cache_bytes: int
    load_options: dict[str, Any]  # of `load_model`
    profile: Profile | None


@dataclass(frozen=True)
class Built:
    """A model in memory and the engine that runs it."""

    model: LoadedModel
    config: DraftConfig
    drafter: Drafter
    engine: Engine


def resolve(
    model: str | Path | LoadedModel | None,
    drafter: str | DraftConfig | Mapping[str, Any] | None,
    *,
    num_speculative_tokens: int | None,
    profile: str | Path | None,
    speculative_config: Mapping[str, Any] | None,
    verifier: str | Verifier,
    batch_size: int,
    policy: str | None,
    max_queue: int | None,
    prefix_cache: bool,
    kv_cache_bytes: int | None,
    prompt_cache: str | Path | None,
    prompt_cache_bytes: int,
    load_options: dict[str, Any],
) -> Settings:
    """Check every argument; `ConfigError` for the first that is wrong. Reads the profile, and loads nothing."""
    _check_kinds(model, drafter, speculative_config, profile, policy)
    _check_number("batch_size", batch_size)
    if max_queue is not None:
        _check_number("max_queue", max_queue, ", or None for no limit")
    if type(prefix_cache) is not bool:
        raise ConfigError(f"prefix_cache is {prefix_cache!r}; allowed: True or False")
    if kv_cache_bytes is not None:
        _check_number("kv_cache_bytes", kv_cache_bytes, ", or None for a share of the free memory")
    _check_number("prompt_cache_bytes", prompt_cache_bytes)
    folder = _prompt_folder(prompt_cache, prefix_cache)
    tuned = None if profile is None else read_profile(profile)
    drafter = drafter if speculative_config is None else speculative_config
    if drafter is None and tuned is not None:
        drafter, policy = tuned.draft_config, policy or tuned.policy
    rule = make_verifier(verifier)
    default = DraftConfig.method if rule.name == Matching.name else STEADY_METHOD
    config = draft_config({} if drafter is None else drafter, num_speculative_tokens, default)
    policy = policy or ("adaptive" if config.method == "auto" else "fixed")
    check_policy(policy)
    given = {name: value for name, value in load_options.items() if value != _LOAD_DEFAULTS[name]}
    if isinstance(model, LoadedModel) and given:
        raise ConfigError(f"{', '.join(given)} cannot change a model that is already loaded")
    if tuned is not None and not isinstance(model, LoadedModel):
        given = tuned.load_options(given)
    return Settings(
        model,
        config,
        policy,
        rule,
        batch_size,
        max_queue,
        prefix_cache,
        kv_cache_bytes,
        folder,
        prompt_cache_bytes,
        given,
        tuned,
    )


def build(settings: Settings) -> Built:
    """Load the model and its drafter, and put them into an engine."""
    model, config = settings.model, settings.config
    if not isinstance(model, LoadedModel):
        model = load_model(model, **settings.load_options)
    if settings.profile is not None:
        settings.profile.check_model(model)
    target = Target(model.decoder, model)
    drafter = make_drafter(config, target, settings.verifier.draft_mode)
    check_pair(drafter, settings.verifier)
    # Without a drafter nothing is planned, so that not even the tokens that a grammar forces are drafted.
    if config.num_speculative_tokens is None:
        config = replace(config, num_speculative_tokens=drafter.default_num_nodes)
    num_nodes = 0 if config.method == "none" else config.num_speculative_tokens or 0
    controller = make_controller(settings.policy if num_nodes else "fixed", target, num_nodes, config.method)
    parts = StepParts(controller, drafter, target, settings.verifier)
    _check_room(settings.kv_cache_bytes, target)
    budget = kv_budget(model.decoder, settings.kv_cache_bytes, settings.prefix_cache)
    engine = Engine(parts, settings.batch_size, budget, disk=_disk(settings, model, target))
    if settings.prompt_cache is not None and not engine.memory.budget.max_finished:
        logger.warning(
            "prompt_cache %s is not used: drafter %s with verifier %s has to see every prompt whole",
            settings.prompt_cache,
            config.method,
            settings.verifier.name,
        )
    return Built(model, config, drafter, engine)


def _disk(settings: Settings, model: LoadedModel, target: Target) -> DiskPrefixes | None:
    if settings.prompt_cache is None:
        return None
    return open_disk(model, target.cache, settings.prompt_cache, settings.prompt_cache_bytes)


def _check_room(kv_cache_bytes: int | None, target: Target) -> None:
    """Nothing could ever be answered in less than a prompt of one token takes."""
    least = target.cache.region_bytes(_LEAST_ROWS)
    if kv_cache_bytes is not None and kv_cache_bytes < least:
        raise ConfigError(
            f"kv_cache_bytes is {kv_cache_bytes}; allowed: {least} or above, which a prompt of one token takes here, "
            "or None for a share of the free memory"
        )


def _prompt_folder(prompt_cache: Any, prefix_cache: bool) -> Path | None:
    if prompt_cache is None:
        return None
    if not isinstance(prompt_cache, str | Path) or not str(prompt_cache).strip():
        raise ConfigError(f"prompt_cache is {prompt_cache!r}; allowed: the path of a folder, or None")
    if not prefix_cache:
        raise ConfigError("prompt_cache keeps what the prefix cache holds, and prefix_cache is off; give one of them")
    folder = Path(prompt_cache).expanduser().absolute()
    if folder.is_file():
        raise ConfigError(f"prompt_cache {folder} is no folder; name one, or a path where it can be made")
    return folder


def _check_kinds(model: Any, drafter: Any, speculative_config: Any, profile: Any, policy: Any) -> None:
    if not isinstance(model, LoadedModel):
        check_model_name(model)
    if drafter is not None and speculative_config is not None:
        raise ConfigError("drafter and speculative_config both name a drafter; give one of them")
    kinds = (
        ("drafter", drafter, str | DraftConfig | Mapping, "a name, NAME=PATH, a mapping, or a DraftConfig"),
        ("speculative_config", speculative_config, Mapping, "a mapping"),
        ("profile", profile, str | Path, "the path of a file that 'foreword tune' wrote"),
        ("policy", policy, str, "the name of a policy, or None"),
    )
    for name, value, kind, allowed in kinds:
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name} is {value!r}; allowed: {allowed}")


def _check_number(name: str, value: Any, other: str = "") -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} is {value!r}; allowed: a whole number, 1 or above{other}")
