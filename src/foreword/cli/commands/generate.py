"""`foreword generate`: answer one prompt, or a file of them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import note, print_json, progress_bar
from foreword.cli.prompt_file import THE_PROMPT, PromptLine, read_prompts, read_reference
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foreword.cli.conversation import Conversation
    from foreword.engine.llm import LLM

_PROMPTS = "Prompts"


def generate(
    prompt: Annotated[
        str | None,
        typer.Option(help="The prompt: a chat message where the model has a chat template.", rich_help_panel=_PROMPTS),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help='Prompts, a JSON line each: {"id", "turns": [...]}, {"id", "prompt"} or {"id", "token_ids"}.',
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="--prompt is plain text to continue.", rich_help_panel=_PROMPTS)
    ] = False,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A text that the answer to --prompt should resemble, such as the file it edits: ngram and suffix also draft "
            'from it. In --prompts: the key "reference".',
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    all_turns: Annotated[
        bool,
        typer.Option(
            "--all-turns",
            help="Ask all turns of a line, with the model's own answers in between. In --json, text, tokens and counts are "
            'those of its answers together; "turns" has each by itself.',
            rich_help_panel=_PROMPTS,
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Only the first prompts.", rich_help_panel=_PROMPTS)] = None,
    json: opt.Json = False,
    model: opt.Model = None,
    drafter: opt.Drafter = None,
    speculative_config: opt.SpeculativeConfig = None,
    num_speculative_tokens: opt.NumSpeculativeTokens = None,
    adaptive: opt.Adaptive = False,
    profile: opt.Profile = None,
    memory: opt.MemoryFile = None,
    remember: opt.Remember = False,
    verifier: opt.Verifier = "match",
    runtime: opt.Runtime = "auto",
    dtype: opt.Dtype = "auto",
    kv_dtype: opt.KvDtype = "auto",
    threads: opt.Threads = None,
    batch_size: opt.BatchSize = 1,
    temperature: opt.Temperature = opt.DEFAULTS.temperature,
    top_k: opt.TopK = opt.DEFAULTS.top_k,
    top_p: opt.TopP = opt.DEFAULTS.top_p,
    min_p: opt.MinP = opt.DEFAULTS.min_p,
    repetition_penalty: opt.RepetitionPenalty = opt.DEFAULTS.repetition_penalty,
    presence_penalty: opt.PresencePenalty = opt.DEFAULTS.presence_penalty,
    frequency_penalty: opt.FrequencyPenalty = opt.DEFAULTS.frequency_penalty,
    seed: opt.Seed = None,
    n: opt.NumSamples = opt.DEFAULTS.n,
    max_tokens: opt.MaxTokens = opt.DEFAULTS.max_tokens,
    min_tokens: opt.MinTokens = opt.DEFAULTS.min_tokens,
    stop: opt.Stop = None,
    ignore_eos: opt.IgnoreEos = False,
    stop_token_id: opt.StopTokenId = None,
    bad_word: opt.BadWord = None,
    logit_bias: opt.LogitBias = None,
    json_schema: opt.JsonSchema = None,
    regex: opt.Regex = None,
    choice: opt.Choice = None,
    logprobs: opt.Logprobs = None,
) -> None:
    """Answer one prompt (--prompt) or a file of them (--prompts)."""
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        stop_token_ids=tuple(stop_token_id or ()),
        bad_words=tuple(bad_word or ()),
        logit_bias=opt.logit_biases(logit_bias),
        grammar=opt.grammar(json_schema, regex, choice),
        logprobs=logprobs,
    )
    if logprobs is not None and not json:
        raise ConfigError("--logprobs goes with --json")
    if n > 1 and all_turns:
        raise ConfigError("--n and --all-turns do not go together: which of the answers would the next turn follow?")
    lines = _lines(prompt, prompts, reference, raw=raw, all_turns=all_turns, limit=limit)
    draft = opt.draft_options(drafter, speculative_config, num_speculative_tokens, adaptive, profile, memory, remember)

    from foreword.cli.answer_record import record
    from foreword.cli.conversation import Conversation, answer
    from foreword.engine.llm import LLM

    with LLM(
        model,
        verifier=verifier,
        batch_size=batch_size,
        runtime=runtime,
        dtype=dtype,
        kv_dtype=kv_dtype,
        threads=threads,
        show_progress=sys.stderr.isatty(),
        **draft,
    ) as llm:
        conversations = [Conversation.begin(llm, line) for line in lines for _ in range(n)]
        if not json and batch_size == 1 and n == 1 and not all_turns:
            _stream(llm, conversations, params)
            return
        with progress_bar("answers" if n > 1 else "prompts", len(conversations), json) as advance:
            for conversation in answer(llm, conversations, params, all_turns=all_turns):
                advance()
                if json:
                    sample = {"sample_index": conversation.results[0].sample_index} if n > 1 else {}
                    print_json(record(llm, conversation, shows_turns=all_turns) | sample)
                else:
                    _print_answer(llm, conversation, show_header=len(conversations) > 1)


def _lines(
    prompt: str | None,
    prompts: Path | None,
    reference: Path | None,
    *,
    raw: bool,
    all_turns: bool,
    limit: int | None,
) -> list[PromptLine]:
    """The prompts that were asked for, before any model is looked at."""
    if (prompt is None) == (prompts is None):
        given = "both" if prompt is not None else "neither"
        raise ConfigError(f"{given} of --prompt and --prompts given; give --prompt TEXT or --prompts FILE")
    if prompts is not None:
        if raw:
            raise ConfigError('--raw goes with --prompt; in a file, lines of the form {"id", "prompt"} are plain text')
        if reference is not None:
            raise ConfigError('--reference goes with --prompt; in a file, lines have the key "reference"')
        return read_prompts(prompts, limit)
    if all_turns or limit is not None:
        raise ConfigError(f"{'--all-turns' if all_turns else '--limit'} goes with --prompts")
    if not prompt:
        raise ConfigError("the prompt is empty; give some text")
    return [
        PromptLine(
            THE_PROMPT,
            1,
            turns=None if raw else (prompt,),
            prompt=prompt if raw else None,
            reference=None if reference is None else read_reference(reference),
        )
    ]


def _stream(llm: "LLM", conversations: Sequence["Conversation"], params: SamplingParams) -> None:
    """Print answers while they are made."""
    for conversation in conversations:
        _print_header(conversation, len(conversations) > 1)
        for piece in llm.stream(conversation.prompt_ids, params, drafting=conversation.drafting):
            print(piece.text, end="", flush=True)
            if piece.result is not None:
                conversation.results.append(piece.result)
        print(flush=True)
        note(_summary(llm, conversation))


def _print_answer(llm: "LLM", conversation: "Conversation", show_header: bool) -> None:
    _print_header(conversation, show_header)
    for result in conversation.results:
        print(result.text, flush=True)
    note(_summary(llm, conversation))


def _print_header(conversation: "Conversation", is_wanted: bool) -> None:
    if is_wanted:
        note(f"--- {conversation.line.id}")


def _summary(llm: "LLM", conversation: "Conversation") -> str:
    """One line for people: what it cost and what speculation gave."""
    from foreword.cli.answer_record import record

    data = record(llm, conversation)
    parts = [f"{data['new_tokens']} tokens ({data['finish_reason']})"]
    if data["tokens_per_step"] is not None:
        parts.append(f"{data['tokens_per_step']:.2f} tokens per step")
    if data["decode_tok_per_s"] is not None:
        parts.append(f"{data['decode_tok_per_s']:.1f} tokens/s")
    parts.append(f"{llm.model.runs_on}, drafter {data['drafter']}, seed {data['seed']}")
    return ", ".join(parts)
