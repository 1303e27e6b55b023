"""Options that several commands share. Defaults come from the dataclasses they fill in."""

import json
from typing import Annotated, Any

import typer

from foreword.config import DraftConfig
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams

# Written out, since the registries import torch and --help must not; a test holds them to the registries.
DRAFTER_NAMES = "none, ngram, suffix, recycling, lookahead, layerskip, draft_model=PATH"
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
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: the physical cores.", rich_help_panel=_MODEL)]
BatchSize = Annotated[int, typer.Option(help="Most prompts that run side by side.", rich_help_panel=_MODEL)]

Drafter = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[=PATH]",
        help=f"Who guesses ahead: {DRAFTER_NAMES}; several with commas. Default: {DraftConfig.method}.",
        rich_help_panel=_DRAFT,
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help="The same as vLLM's speculative_config, instead of --drafter.", rich_help_panel=_DRAFT
    ),
]
NumSpeculativeTokens = Annotated[
    int | None,
    typer.Option(
        help=f"Most drafted tokens a step. Default: the drafter's own, often {DraftConfig.num_speculative_tokens}.",
        rich_help_panel=_DRAFT,
    ),
]
Verifier = Annotated[
    str,
    typer.Option(
        help=f"How drafts are checked: {VERIFIER_NAMES}. match keeps every token; typical is lossy.",
        rich_help_panel=_DRAFT,
    ),
]

Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLE)]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.", rich_help_panel=_SAMPLE)]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens that hold this mass.", rich_help_panel=_SAMPLE)]
MinP = Annotated[
    float, typer.Option(help="Keep tokens at least this fraction as likely as the likeliest.", rich_help_panel=_SAMPLE)
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1: tokens of prompt and answer become less likely.", rich_help_panel=_SAMPLE)
]
PresencePenalty = Annotated[
    float, typer.Option(help="Taken off the logits of tokens that the answer has.", rich_help_panel=_SAMPLE)
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Taken off for each time the answer has a token.", rich_help_panel=_SAMPLE)
]
Seed = Annotated[int | None, typer.Option(help="Default: a fresh one, reported.", rich_help_panel=_SAMPLE)]
NumSamples = Annotated[int, typer.Option("--n", help="Answers a prompt.", rich_help_panel=_SAMPLE)]
MaxTokens = Annotated[int, typer.Option(help="Most new tokens.", rich_help_panel=_SAMPLE)]
MinTokens = Annotated[int, typer.Option(help="Tokens that must come before the end may.", rich_help_panel=_SAMPLE)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="A text that ends the answer and is cut off it; repeatable.", rich_help_panel=_SAMPLE),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the model's end token.", rich_help_panel=_SAMPLE)
]
StopTokenId = Annotated[
    list[int] | None, typer.Option(help="A further token that ends the answer; repeatable.", rich_help_panel=_SAMPLE)
]
Json = Annotated[bool, typer.Option("--json", help="Data as JSON on stdout, everything else on stderr.")]

DEFAULTS = SamplingParams()


def draft_options(
    drafter: str | None, speculative_config: str | None, num_speculative_tokens: int | None
) -> dict[str, Any]:
    """What the three options of speculation mean as arguments of `LLM`."""
    if drafter is not None and speculative_config is not None:
        raise ConfigError("--drafter and --speculative-config both name a drafter; give one of them")
    options: dict[str, Any] = {"num_speculative_tokens": num_speculative_tokens}
    if speculative_config is None:
        return options | {"drafter": drafter or DraftConfig.method}
    try:
        config = json.loads(speculative_config)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"--speculative-config is not JSON ({error}); an example: "
            f'\'{{"method": "ngram", "num_speculative_tokens": 5}}\''
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(f"--speculative-config is {speculative_config}; it must be a JSON object: {{...}}")
    return options | {"speculative_config": config}
