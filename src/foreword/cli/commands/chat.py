"""`foreword chat`: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import options as opt
from foreword.cli.output import note
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foreword.engine.llm import LLM

_MAX_TOKENS = 1024  # an answer in a chat may be long: Ctrl-C is at hand


def chat(
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
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
    temperature: opt.Temperature = opt.DEFAULTS.temperature,
    top_k: opt.TopK = opt.DEFAULTS.top_k,
    top_p: opt.TopP = opt.DEFAULTS.top_p,
    min_p: opt.MinP = opt.DEFAULTS.min_p,
    repetition_penalty: opt.RepetitionPenalty = opt.DEFAULTS.repetition_penalty,
    presence_penalty: opt.PresencePenalty = opt.DEFAULTS.presence_penalty,
    frequency_penalty: opt.FrequencyPenalty = opt.DEFAULTS.frequency_penalty,
    seed: opt.Seed = None,
    max_tokens: Annotated[int, typer.Option(help="Most new tokens per answer.", rich_help_panel="Sampling")] = (
        _MAX_TOKENS
    ),
    stop: opt.Stop = None,
) -> None:
    """Talk with a model. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends. From a pipe, each line is a turn."""
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )
    if max_tokens < 1:
        raise ConfigError(f"--max-tokens is {max_tokens}; allowed: 1 or above, or there would be no answer")
    draft = opt.draft_options(drafter, speculative_config, num_speculative_tokens, adaptive, profile, memory, remember)

    from foreword.cli.chat.chat_loop import Chat
    from foreword.cli.chat.typed_messages import MessageReader
    from foreword.engine.llm import LLM

    options = {"runtime": runtime, "dtype": dtype, "kv_dtype": kv_dtype, "threads": threads}
    llm = LLM(model, verifier=verifier, batch_size=1, show_progress=sys.stderr.isatty(), **draft, **options)
    _check_messages(llm, system)
    reader = MessageReader()
    if reader.is_terminal:
        note(f"{llm.model.checkpoint.source}, {llm.model.runs_on}, drafter {llm.config.method}; /help for help")
    with llm:
        Chat(llm, params, reader, system).run()


def _check_messages(llm: "LLM", system: str | None) -> None:
    """Refuse, before anyone types, a model that cannot chat or takes no system prompt."""
    if not llm.tokenizer.has_chat_template:
        raise ConfigError(
            f"{llm.model.checkpoint.source} has no chat template, so it cannot chat; 'foreword generate --raw' continues text"
        )
    if system is not None:
        llm.encode([{"role": "system", "content": system}, {"role": "user", "content": "Hello"}])
