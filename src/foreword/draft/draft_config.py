"""Which drafter drafts, and its settings.

    {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_tree": false}     as JSON: vLLM's `speculative_config`
    DraftConfig(method="suffix", num_speculative_tokens=8, options={"suffix_decoding_tree": False})

Each drafter has options of its own (`DrafterType.options`); one that no drafter named here has is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from foreword.config import MAX_SPECULATIVE_TOKENS, STEADY_METHOD
from foreword.draft.cascade import CascadeOptions
from foreword.draft.drafter_options import DrafterOptions, bounds_of
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.names import bare_names, parse_method
from foreword.draft.registry import drafter_type, drafter_types
from foreword.errors import ConfigError, UnknownNameError
from foreword.validate import Bounds, refusal

# Names that users of other engines know, for the same thing.
ALIASES = {
    "model": "path",  # vLLM
    "draft_model": "path",
    "assistant_model": "path",  # Hugging Face
    "num_assistant_tokens": "num_speculative_tokens",  # Hugging Face
    "prompt_lookup_num_tokens": "num_speculative_tokens",  # Hugging Face
    "max_matching_ngram_size": "prompt_lookup_max",  # Hugging Face
    "max_ngram_size": "prompt_lookup_max",  # OpenVINO
    "assistant_confidence_threshold": "draft_confidence_threshold",  # Hugging Face
    "assistant_early_exit": "exit_layer",  # Hugging Face
    "speculative_eagle_topk": "draft_tree_width",  # SGLang
    "speculative_num_steps": "draft_tree_depth",  # SGLang
    "speculative_token_map": "draft_vocab",  # SGLang
}
_COMMON = {
    "method": Bounds(str),
    "path": Bounds(str, or_none=True),
    "num_speculative_tokens": Bounds(int, 0, MAX_SPECULATIVE_TOKENS, or_none=True),
}
Named = list[tuple[str, str | None]]  # (name, path) of each drafter
_SEVERAL = "several drafters joined by commas"


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """A drafter, or several in turn.

    Args:
        method: a drafter's name, or several with commas between, each with its path: "suffix,draft_model=PATH".
        path: folder, file or hub id of the drafter's weights; of several drafters, of those that name none themselves.
        num_speculative_tokens: most drafted nodes per step; None for the drafter's own number.
        options: the drafter's settings by name, or an object of its options; of several, each goes to all that have it.
            Kept as pairs of name and value.

    Raises:
        ConfigError: a name, path or setting that cannot be meant. The drafters that are named are imported, nothing is loaded.
    """

    method: str = "auto"
    path: str | None = None
    num_speculative_tokens: int | None = None
    options: Mapping[str, Any] | DrafterOptions | tuple[tuple[str, Any], ...] = ()
    members: tuple[DrafterSettings, ...] = field(init=False, compare=False, repr=False)
    cascade: CascadeOptions | None = field(init=False, compare=False, repr=False)  # how several go together

    def __post_init__(self) -> None:
        for name, bounds in _COMMON.items():
            self._set(name, bounds.checked(name, getattr(self, name)))
        named = parse_method(self.method)
        types = [drafter_type(name) for name, _ in named]
        self._check_company(named, types)
        if len(named) == 1:
            self._set("method", named[0][0])
            self._set("path", named[0][1] or self.path)
        kinds = [one.options for one in types] + [CascadeOptions] * (len(types) > 1)
        given = _given(self.options)
        self._check_owned(given, kinds)
        made = [kind(**{name: given[name] for name in _names(kind) & given.keys()}) for kind in kinds]
        paths = [
            path or (self.path if one.takes_path or len(types) == 1 else None)
            for one, (_, path) in zip(types, named, strict=True)
        ]
        self._set("members", tuple(map(DrafterSettings, types, made, paths)))
        self._set("cascade", made[-1] if len(types) > 1 else None)
        kept = {name: getattr(one, name) for one in made for name in _names(type(one)) & given.keys()}
        self._set("options", tuple(sorted(kept.items())))

    @property
    def settings(self) -> dict[str, Any]:
        """What is set, as a `speculative_config`: `parse_draft_config` makes the same of it."""
        common = {"model": self.path, "num_speculative_tokens": self.num_speculative_tokens}
        return {"method": self.method} | {k: v for k, v in common.items() if v is not None} | _given(self.options)

    def with_options(self, **options: Any) -> "DraftConfig":
        """The same with further options, or other values of them."""
        return replace(self, options=_given(self.options) | options)

    def _check_company(self, named: Named, types: list[DrafterType]) -> None:
        """Names that go together, with paths where one is read; what is said of no drafter is refused."""
        for (name, path), one in zip(named, types, strict=True):
            if path and not one.takes:
                raise _takes_no_path(name, path)
            if len(named) > 1 and one.alone:
                raise ConfigError(f"drafter is {self.method!r}, and {name} goes with no other: {one.alone}")
            if named.count((name, path)) > 1:
                part = f"{name}={path}" if path else name
                raise ConfigError(f"drafter is {self.method!r}, which names {part} twice; name each drafter once")
        if self.path is not None and not any(one.takes for one in types):
            raise _takes_no_path(self.method, self.path)
        if self.path is not None and all(path for (_, path), one in zip(named, types, strict=True) if one.takes):
            raise ConfigError(
                f"path is {self.path!r}, and drafter {self.method!r} names its own; leave one of them out"
            )
        if self.num_speculative_tokens and not any(one.drafts for one in types):
            raise ConfigError(
                f"num_speculative_tokens is {self.num_speculative_tokens}, and drafter {self.method} drafts nothing; leave it out"
            )

    def _check_owned(self, given: Mapping[str, Any], kinds: list[type[DrafterOptions]]) -> None:
        """Every option belongs to one of the drafters."""
        for name in sorted(given.keys() - set().union(*map(_names, kinds))):
            owners = _owners(name)
            if not owners:
                raise UnknownNameError("setting", name, {*_all_options(), *_COMMON, *ALIASES})
            raise ConfigError(
                f"{name} does nothing for {bare_names(self.method)}; it belongs to {', '.join(owners)}; leave it out"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def parse_draft_config(options: Mapping[str, Any], default_method: str = DraftConfig.method) -> DraftConfig:
    """Settings from a `speculative_config` mapping; an unknown key is an error that names the nearest known one.

    Without `method` it is `default_method`, or ngram where a setting of prompt lookup is given.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"the drafter's settings are {options!r}; allowed: a name, a mapping or a DraftConfig")
    values: dict[str, Any] = {}
    for key, value in options.items():
        name = ALIASES.get(key, key)
        if name in values:
            raise ConfigError(f"speculative_config gives {name} twice, once as {key}; leave one out")
        values[name] = value
    is_lookup = any(str(name).startswith("prompt_lookup") for key in options for name in (key, ALIASES.get(key)))
    common: dict[str, Any] = {"method": STEADY_METHOD if is_lookup else default_method}
    common |= {name: values.pop(name) for name in _COMMON if name in values}
    return DraftConfig(**common, options=values)


def draft_config(
    drafter: str | DraftConfig | Mapping[str, Any],
    num_speculative_tokens: int | None = None,
    default_method: str = DraftConfig.method,
) -> DraftConfig:
    """Settings from NAME, NAME=PATH, several of them joined by commas, a mapping, or settings.

    `num_speculative_tokens` wins where given, `default_method` where no method is named.
    """
    if isinstance(drafter, str):
        config = DraftConfig(method=drafter)
    else:
        config = drafter if isinstance(drafter, DraftConfig) else parse_draft_config(drafter, default_method)
    return config if num_speculative_tokens is None else replace(config, num_speculative_tokens=num_speculative_tokens)


def _given(options: Any) -> dict[str, Any]:
    """Options by name; of an options object those that are not its defaults."""
    if isinstance(options, DrafterOptions):
        return {one.name: v for one in fields(options) if (v := getattr(options, one.name)) != one.default}
    try:
        return {str(name): value for name, value in dict(options).items()}
    except (TypeError, ValueError) as error:
        raise refusal("options", options, "the drafter's settings by name, or its options object") from error


def _names(kind: type[DrafterOptions]) -> set[str]:
    return set(bounds_of(kind))


def _owners(option: str) -> list[str]:
    """The drafters that have an option."""
    several = [_SEVERAL] * (option in _names(CascadeOptions))
    return [one.name for one in drafter_types() if option in _names(one.options)] + several


def _all_options() -> set[str]:
    return set().union(_names(CascadeOptions), *(_names(one.options) for one in drafter_types()))


def _takes_no_path(name: str, path: str) -> ConfigError:
    trained = ", ".join(sorted(one.name for one in drafter_types() if one.takes_path))
    return ConfigError(
        f"drafter {name} reads no weights, and {path!r} is named for it; leave the path out, or name one of {trained}"
    )
