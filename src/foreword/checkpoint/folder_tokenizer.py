"""The tokenizer of a Hugging Face folder: tokenizer.json, tokenizer_config.json, the chat template wherever it lies."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.json_file import read_json, read_json_if_any
from foreword.checkpoint.reading import reason_of
from foreword.checkpoint.tokenizer import Tokenizer
from foreword.checkpoint.typed_keys import Options
from foreword.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MOST_DIGITS = 9  # of an id
_OLD_FILES = ("tokenizer.model", "vocab.json", "spiece.model")  # what older tokenizers are saved as


def tokenizer_from_folder(folder: Path, source: str) -> Tokenizer:
    """Read the tokenizer.

    What stands around a text is the rule in tokenizer.json (its post-processor); `add_bos_token` and `add_eos_token` of
    tokenizer_config.json do not change it, as in transformers 5.

    Raises:
        CheckpointError: there is none, or its files are damaged.
    """
    config = read_json_if_any(folder / "tokenizer_config.json")
    special_tokens = _special_tokens({**read_json_if_any(folder / "special_tokens_map.json"), **config})
    if (folder / "tokenizer.json").is_file():
        backend = _load(folder / "tokenizer.json")
        _add_missing_tokens(backend, Options(config, source, " in tokenizer_config.json"))
    else:
        backend = _convert_old(folder, source)
    return Tokenizer(backend, special_tokens, _chat_template(folder, config), source)


def _load(path: Path) -> "tokenizers.Tokenizer":
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_buffer(
            path.read_bytes()
        )  # paths need not be UTF-8, `from_file` takes no other
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path} cannot be read ({reason_of(error)}); fetch it again") from error


def _convert_old(folder: Path, source: str) -> "tokenizers.Tokenizer":
    """Let transformers convert the files of an older tokenizer: slow to import, and rare."""
    if not any((folder / name).is_file() for name in _OLD_FILES):
        raise CheckpointError(f"{source} has no tokenizer: tokenizer.json is missing in {folder}; fetch it again")
    from transformers import AutoTokenizer

    try:
        backend = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # anything from a missing optional package to a damaged file
        raise CheckpointError(
            f"{source} has no tokenizer.json, and its older tokenizer files cannot be converted ({error}); "
            f"put the model's tokenizer.json into {folder}"
        ) from error
    return backend


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _add_missing_tokens(backend: "tokenizers.Tokenizer", config: Options) -> None:
    """Tokens that only tokenizer_config.json lists, in the order of their ids."""
    import tokenizers

    table = config.table("added_tokens_decoder")
    if not all(key.isdecimal() and len(key) <= _MOST_DIGITS for key in table.values):
        raise config.wrong("added_tokens_decoder", "a table of tokens by their ids")
    for key in sorted(table.values, key=int):
        token = table.table(key)
        text = token.text("content")
        if backend.token_to_id(text) is None:
            backend.add_tokens([tokenizers.AddedToken(text, **{flag: token.flag(flag) for flag in _FLAGS})])


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for role in SPECIAL_ROLES:
        token = config.get(role)
        text = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(text, str):
            found[role] = text
    return found


def frame_tokens(backend: "tokenizers.Tokenizer", before: str | None, after: str | None) -> None:
    """Make `encode(add_special_tokens=True)` put these tokens around a text. Uncommitted tokens are left out."""
    from tokenizers import processors

    ids = {token: backend.token_to_id(token) for token in (before, after) if token is not None}
    known = [(token, index) for token, index in ids.items() if index is not None]
    names = {token for token, _ in known}
    single = [token for token in (before, "$A", after) if token == "$A" or token in names]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(single), pair=" ".join([*single, "$B:1"]), special_tokens=known
    )


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, chat_template.json or the entry in tokenizer_config.json, in this order."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}); fetch it again") from error
    old = folder / "chat_template.json"
    template = read_json(old).get("chat_template") if old.is_file() else config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None
