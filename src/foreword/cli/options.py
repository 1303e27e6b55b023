"""Options that several commands share. Defaults come from the dataclasses they fill in."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.config import DEFAULT_SPECULATIVE_TOKENS
from foreword.draft.registry import drafter_names
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foreword.sampling.grammar import Grammar

DRAFTER_NAMES = ", ".join(drafter_names())
# Written out, since that registry imports torch and --help must not; a test holds it to the registry.
VERIFIER_NAMES = "match, rejection, block, typical"
_MODEL, _DRAFT, _SAMPLE = "Model", "Speculation", "Sampling"

Model = Annotated[
    str | None,
    typer.Option(
        help="A Hugging Face folder or hub id, or a GGUF file. Default: SmolLM2-135M-Instruct, fetched once (98 MB).",
        rich_help_panel=_MODEL,
    ),
]
Runtime = Annotated[str, typer.Option(help="auto, torch or native.", rich_help_panel=_MODEL)]
Dtype = Annotated[
    str,
    typer.Option(help="auto, float32, bfloat16 (both torch), int8 or int4 (both native).", rich_help_panel=_MODEL),
]
KvDtype = Annotated[
    str,
    typer.Option(help="Type of the KV cache: auto (native: bfloat16), float32 or bfloat16.", rich_help_panel=_MODEL),
]
Isa = Annotated[
    str,
    typer.Option(
        help="Instruction set of the native runtime: auto, or one that this processor runs (amx, avx512vnni, avxvnni, avx2, dotprod, portable).",
        rich_help_panel=_MODEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads. Default: as many physical cores as help, measured once.", rich_help_panel=_MODEL),
]
ShareWeights = Annotated[
    bool,
    typer.Option(
        "--share-weights",
        help="Map the packed weights instead of copying them: processes hold them once and start at once, a little slower.",
        rich_help_panel=_MODEL,
    ),
]
BatchSize = Annotated[int, typer.Option(help="Most prompts in one batch.", rich_help_panel=_MODEL)]

Drafter = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[=PATH]",
        help=f"Who drafts: {DRAFTER_NAMES}; =PATH for one with weights of its own, several with commas. Default: auto; "
        "ngram where --verifier is not match.",
        rich_help_panel=_DRAFT,
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="vLLM's speculative_config, instead of --drafter.", rich_help_panel=_DRAFT),
]
NumSpeculativeTokens = Annotated[
    int | None,
    typer.Option(
        help=f"Most drafted tokens per step. Default: the drafter's own number, often {DEFAULT_SPECULATIVE_TOKENS}.",
        rich_help_panel=_DRAFT,
    ),
]
DraftVocab = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Draft only these tokens: a .pt or .json list of ids; draft_vocab in --speculative-config.",
        rich_help_panel=_DRAFT,
    ),
]
Verifier = Annotated[
    str,
    typer.Option(
        help=f"How drafts are verified: {VERIFIER_NAMES}. match gives the tokens of plain decoding; typical is lossy.",
        rich_help_panel=_DRAFT,
    ),
]

Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive",
        help="Choose the draft length from measured pass times, 0 where drafting is slower; always on with auto.",
        rich_help_panel=_DRAFT,
    ),
]

Profile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Drafter, settings, runtime and threads from a file that 'foreword tune' wrote; other options override it.",
        rich_help_panel=_DRAFT,
    ),
]

MemoryFile = Annotated[
    Path | None,
    typer.Option(
        "--memory",
        metavar="FILE",
        help="Learn from the answers, in this file, how to draft for the next ones; for drafters auto and memory.",
        rich_help_panel=_DRAFT,
    ),
]
Remember = Annotated[
    bool,
    typer.Option(
        "--remember",
        help="As --memory, in the cache folder, one file a model. 'foreword forget' erases it.",
        rich_help_panel=_DRAFT,
    ),
]

Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLE)]
TopK = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.", rich_help_panel=_SAMPLE)]
TopP = Annotated[
    float,
    typer.Option(
        help="Keep the smallest set of most probable tokens whose probabilities sum to this.", rich_help_panel=_SAMPLE
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        help="Keep tokens whose probability is at least this fraction of the highest.", rich_help_panel=_SAMPLE
    ),
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1: tokens of prompt and answer become less probable.", rich_help_panel=_SAMPLE)
]
PresencePenalty = Annotated[
    float, typer.Option(help="Subtracted from the logits of tokens that occur in the answer.", rich_help_panel=_SAMPLE)
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Subtracted for each time a token occurs in the answer.", rich_help_panel=_SAMPLE)
]
Seed = Annotated[int | None, typer.Option(help="Default: a random one, reported.", rich_help_panel=_SAMPLE)]
NumSamples = Annotated[int, typer.Option("--n", help="Answers per prompt.", rich_help_panel=_SAMPLE)]
MaxTokens = Annotated[int, typer.Option(help="Most new tokens.", rich_help_panel=_SAMPLE)]
MinTokens = Annotated[int, typer.Option(help="Tokens before the answer may end.", rich_help_panel=_SAMPLE)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="A text that ends the answer and is removed from it; repeatable.", rich_help_panel=_SAMPLE),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Continue after the model's end token.", rich_help_panel=_SAMPLE)
]
StopTokenId = Annotated[
    list[int] | None, typer.Option(help="A further token that ends the answer; repeatable.", rich_help_panel=_SAMPLE)
]
JsonSchema = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|JSON", help="The answer is JSON that is valid for this schema.", rich_help_panel=_SAMPLE
    ),
]
Regex = Annotated[
    str | None, typer.Option(help="The whole answer matches this regular expression.", rich_help_panel=_SAMPLE)
]
Choice = Annotated[
    list[str] | None, typer.Option(help="The answer is one of these texts; repeatable.", rich_help_panel=_SAMPLE)
]
BadWord = Annotated[
    list[str] | None, typer.Option(help="A text that may not occur in the answer; repeatable.", rich_help_panel=_SAMPLE)
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=NUMBER", help="Added to a token's logit; repeatable.", rich_help_panel=_SAMPLE),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="With --json: each token's log-probability, and the top N.", rich_help_panel=_SAMPLE
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Data as JSON on stdout, everything else on stderr.")]

DEFAULTS = SamplingParams()
_UNITS = {"h": 3600, "m": 60, "s": 1}


def draft_options(
    drafter: str | None,
    speculative_config: str | None,
    num_speculative_tokens: int | None,
    is_adaptive: bool = False,
    profile: Path | None = None,
    memory: Path | None = None,
    remember: bool = False,
) -> dict[str, Any]:
    """What the options of speculation mean as arguments of `LLM`. A profile is looked at only there."""
    kept = _kept(memory, remember)
    if kept and profile is not None and drafter is None and speculative_config is None:
        raise ConfigError(
            "--memory and --remember go with a drafter, and --profile names its own; name one with --drafter too"
        )
    if drafter is not None and speculative_config is not None:
        raise ConfigError("--drafter and --speculative-config both name a drafter; give one of them")
    options: dict[str, Any] = {"num_speculative_tokens": num_speculative_tokens}
    if is_adaptive:
        options["policy"] = "adaptive"
    if profile is not None:
        options["profile"] = profile
    if drafter == "":
        raise ConfigError(f"--drafter is empty; allowed: {DRAFTER_NAMES}")
    if speculative_config is None:
        return options | {"drafter": ({"method": drafter} if drafter else {}) | kept if kept else drafter}
    try:
        config = json.loads(speculative_config)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--speculative-config is not JSON ({error}); an example: "
            f'\'{{"method": "ngram", "num_speculative_tokens": 5}}\''
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(f"--speculative-config is {speculative_config}; it must be a JSON object: {{...}}")
    if twice := kept.keys() & config.keys():
        raise ConfigError(f"--speculative-config has {min(twice)}, and so has the command line; give one of them")
    return options | {"speculative_config": config | kept}


def _kept(memory: Path | None, remember: bool) -> dict[str, Any]:
    """Where the memory is kept, as settings of a drafter."""
    if memory is not None and remember:
        raise ConfigError("--memory names a file and --remember keeps one in the cache folder; give one of them")
    return {"memory_file": str(memory)} if memory is not None else {"memory_remember": True} if remember else {}


def grammar(json_schema: str | None, regex: str | None, choice: Sequence[str] | None) -> "Grammar | None":
    """What the three options of a grammar mean; at most one may be given."""
    given = {"--json-schema": json_schema is not None, "--regex": regex is not None, "--choice": bool(choice)}
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} are all grammars; give one of them")
    if not names:
        return None
    from foreword.sampling.grammar import Grammar

    if json_schema is not None:
        return Grammar.json_schema(_schema_text(json_schema))
    return Grammar.regex(regex) if regex is not None else Grammar.choice(list(choice or ()))


def _schema_text(given: str) -> str:
    """The schema itself, or the content of the file that is named."""
    if given.lstrip().startswith("{"):
        return given
    try:
        return Path(given).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--json-schema is {given!r}: neither a JSON object nor a file of one ({reason})") from error


def logit_biases(given: Sequence[str] | None) -> dict[int, float]:
    """Pairs of the form ID=NUMBER."""
    biases: dict[int, float] = {}
    for pair in given or ():
        token, _, bias = pair.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError as error:
            raise ConfigError(f"--logit-bias is {pair!r}; allowed: a token id and a number, such as 42=-5") from error
    return biases


def parse_duration(option: str, text: str) -> float:
    """Seconds of "90s", "30m", "2h" or "1h30m"."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or seconds <= 0:
        raise ConfigError(f"{option} is {text!r}; allowed: a time such as 90s, 30m, 2h or 1h30m")
    return seconds
