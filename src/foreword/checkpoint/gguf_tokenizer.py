"""The tokenizer in a GGUF's metadata, rebuilt as its authors published it.

GGUF stores the vocabulary, merges or scores, and the name of the splitting rule. Two kinds are read:

    "gpt2"    byte-level BPE; `tokenizer.ggml.pre` names the rule that cuts text before merging (`PRE_TOKENIZERS`)
    "llama"   SentencePiece BPE with byte fallback; merges follow from the scores
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.folder_tokenizer import frame_tokens
from foreword.checkpoint.gguf_header import StringList
from foreword.checkpoint.tokenizer import Tokenizer
from foreword.checkpoint.typed_keys import Options
from foreword.config import short_repr
from foreword.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

# kinds of a token in `tokenizer.ggml.token_type`
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_WORD_START = "\u2581"
_PREFIX = "tokenizer.ggml."

# What the published tokenizer.json files of these models split by.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before merging."""

    split: str | None = None  # a regular expression; None: the one of GPT-2
    single_digits: bool = False  # each digit for itself first
    nfc: bool = False  # Unicode normal form C
    ignore_merges: bool = False  # a piece that is a token as a whole is not merged from parts
    begins_text: bool = False  # a begin token goes first when the file does not say


_GPT2, _DIGITS = PreTokenizer(), PreTokenizer(single_digits=True)
_LLAMA3 = PreTokenizer(split=_LLAMA3_SPLIT, ignore_merges=True, begins_text=True)
_QWEN2 = PreTokenizer(split=_QWEN2_SPLIT, nfc=True)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": PreTokenizer(split=_TEKKEN_SPLIT, ignore_merges=True, begins_text=True),
}


@dataclass(frozen=True)
class _Vocabulary:
    """What every kind of tokenizer has."""

    options: Options
    tokens: list[str]
    kinds: tuple[int, ...]  # of each token

    @property
    def source(self) -> str:
        """The model's name."""
        return self.options.source

    def token(self, role: str) -> str | None:
        """The token of a role, such as "bos"; None where the file names none."""
        key = f"{role}_token_id"
        if self.options.get(key) is None:
            return None
        return self.tokens[self.options.whole(key, highest=len(self.tokens) - 1)]


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """Rebuild the tokenizer.

    Raises:
        UnsupportedModelError: a kind or splitting rule that is not known here.
        CheckpointError: there is no vocabulary, a part of it is missing, or its parts do not fit each other.
    """
    options = Options(metadata, source, " in the file's metadata", _PREFIX)
    kind = options.get("model")
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    if kind not in builders:
        raise UnsupportedModelError(
            f"{source} has a tokenizer of kind {short_repr(kind)}; supported: {', '.join(builders)}"
        )
    tokens, kinds = list(_strings(options, "tokens")), _numbers(options, "token_type")
    if not tokens or len(kinds) != len(tokens):
        raise CheckpointError(f"{source} has {len(tokens)} tokens and {len(kinds)} kinds of them; fetch it again")
    if len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{source} has the same token several times in its vocabulary; fetch it again")
    vocabulary = _Vocabulary(options, tokens, kinds)
    backend, begins_text = builders[kind](vocabulary)
    _add_special(backend, vocabulary, kind == "llama")
    special_tokens = _special_tokens(vocabulary)
    _frame(backend, options, special_tokens, begins_text)
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, special_tokens, template if isinstance(template, str) else None, source)


def _strings(options: Options, key: str) -> Iterable[str]:
    """A list of texts that the file must have: without it, text would be cut otherwise than the model learned it."""
    found = options.get(key)
    if not isinstance(found, StringList):
        raise options.wrong(key, "a list of texts; without it the tokenizer is not whole: fetch the file again")
    return found


def _numbers(options: Options, key: str) -> tuple[Any, ...]:
    found = options.get(key)
    if not isinstance(found, tuple):
        raise options.wrong(key, "a list of numbers; without it the tokenizer is not whole: fetch the file again")
    return found


def _byte_level_bpe(vocabulary: _Vocabulary) -> tuple["tokenizers.Tokenizer", bool]:
    import tokenizers
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    rule = _pre_tokenizer(vocabulary)
    vocab = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges: Any = [tuple(pair.split(" ", 1)) for pair in _strings(vocabulary.options, "merges")]
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.ignore_merges)
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{vocabulary.source} has a damaged vocabulary ({error}); fetch it again") from error
    backend = tokenizers.Tokenizer(model)
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.single_digits else []
    if rule.split:
        steps.append(pre_tokenizers.Split(Regex(rule.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, rule.begins_text


def _pre_tokenizer(vocabulary: _Vocabulary) -> PreTokenizer:
    options = vocabulary.options
    if options.get("pre") is None:
        name = _guess(vocabulary)
        logger.warning("%s does not name its splitting rule; taking %r", vocabulary.source, name)
    else:
        name = options.text("pre")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{vocabulary.source} splits text by the rule {short_repr(name)}, which foreword does not have; "
            f"supported: {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _guess(vocabulary: _Vocabulary) -> str:
    """The rule of a file from before rules were named, by its architecture and size of vocabulary."""
    if str(vocabulary.options.values.get("general.architecture")).startswith("qwen"):
        return "qwen2"
    return "llama-bpe" if len(vocabulary.tokens) >= 128_000 else "default"


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> tuple["tokenizers.Tokenizer", bool]:
    import tokenizers
    from tokenizers import decoders, models, normalizers

    tokens, kinds, options = vocabulary.tokens, vocabulary.kinds, vocabulary.options
    scores = _numbers(options, "scores")
    if len(scores) != len(tokens):
        raise CheckpointError(f"{vocabulary.source} has {len(tokens)} tokens and {len(scores)} scores; fetch it again")
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = vocabulary.token("unknown") or (tokens[kinds.index(_UNKNOWN)] if _UNKNOWN in kinds else None)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_by_score(vocab, tokens, kinds, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = options.flag("add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend(_WORD_START)] if prefixed else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _WORD_START)])
    decoding: list[Any] = [decoders.Replace(_WORD_START, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)] if prefixed else decoding)
    return backend, True


def _merges_by_score(
    vocab: Mapping[str, int], tokens: list[str], kinds: tuple[int, ...], scores: tuple[float, ...]
) -> list[tuple[str, str]]:
    """Every way to make a token of two tokens, best score first: SentencePiece merges the best pair first."""
    ranked = []
    for index, token in enumerate(tokens):
        if kinds[index] in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            continue
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], index, left, right))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


def _add_special(backend: "tokenizers.Tokenizer", vocabulary: _Vocabulary, sentencepiece: bool) -> None:
    """Control tokens are special; user-defined ones are found in text before it is cut, but are ordinary words."""
    from tokenizers import AddedToken

    special, ordinary = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind == _CONTROL or (kind == _UNKNOWN and sentencepiece):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            # A token with SentencePiece's mark is found where the text has a space.
            ordinary.append(AddedToken(token, special=False, normalized=sentencepiece and _WORD_START in token))
    backend.add_special_tokens(special)
    backend.add_tokens(ordinary)


def _special_tokens(vocabulary: _Vocabulary) -> dict[str, str]:
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found = {role: vocabulary.token(key) for role, key in roles.items()}
    return {role: token for role, token in found.items() if token is not None}


def _frame(
    backend: "tokenizers.Tokenizer", options: Options, special_tokens: Mapping[str, str], begins_text: bool
) -> None:
    begin = options.flag("add_bos_token", begins_text)
    end = options.flag("add_eos_token")
    frame_tokens(
        backend, special_tokens.get("bos_token") if begin else None, special_tokens.get("eos_token") if end else None
    )
