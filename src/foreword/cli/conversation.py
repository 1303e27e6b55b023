"""One question or all turns of a conversation, many per batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foreword.cli.output import note
from foreword.cli.prompt_file import THE_PROMPT, PromptLine
from foreword.engine.llm import LLM
from foreword.engine.result import Result
from foreword.errors import ConfigError, PromptTooLongError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams


@dataclass
class Conversation:
    """A prompt on its way: what is asked, what was answered."""

    line: PromptLine
    prompt_ids: list[int]  # of the question that is next
    results: list[Result] = field(default_factory=list)
    is_cut: bool = False  # a further turn did not fit the context

    @classmethod
    def begin(cls, llm: LLM, line: PromptLine) -> "Conversation":
        """With its first question, checked; the error says which line is wrong."""
        try:
            return cls(line, llm.encode(_first_question(llm, line)))
        except ConfigError as error:
            if line.where == THE_PROMPT:
                raise
            raise ConfigError(f"{line.where}: {error}") from error

    def next_turn(self, llm: LLM) -> bool:
        """Prepare the next question; False where there is none or it no longer fits."""
        turns = self.line.turns or ()
        if self.is_cut or len(self.results) >= len(turns):
            return False
        messages: list[dict[str, str]] = []
        for turn, result in zip(turns, self.results, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": result.text}]
        try:
            self.prompt_ids = llm.encode([*messages, {"role": "user", "content": turns[len(self.results)]}])
        except PromptTooLongError as error:
            self.is_cut = True
            note(f"{self.line.where}: turn {len(self.results) + 1} and later are left out: {error}")
        return not self.is_cut

    @property
    def drafting(self) -> DraftingParams:
        """How its answers are drafted for."""
        return DraftingParams(reference=self.line.reference)

    def params(self, params: SamplingParams) -> SamplingParams:
        """The options with one seed for the whole conversation: the seed reported brings all of it back."""
        return replace(params, seed=self.results[0].seed) if self.results else params


def answer(
    llm: LLM, conversations: Sequence[Conversation], params: SamplingParams, *, all_turns: bool = False
) -> Iterator[Conversation]:
    """Answer all, in their order. With one turn, each comes as soon as it and those before it are done.

    Where `params` asks for n answers, n conversations that follow each other share a prompt.
    """
    num_rounds = max(len(c.line.turns or (0,)) for c in conversations) if all_turns else 1
    for turn in range(num_rounds - 1):
        for _ in _ask(llm, [c for c in conversations if turn == 0 or c.next_turn(llm)], params):
            pass
    # Those that have no further turn are done already and keep their place.
    last = [c for c in conversations if num_rounds == 1 or c.next_turn(llm)]
    asked = _ask(llm, last, params)
    for conversation in conversations:
        if conversation in last:
            next(asked)
        yield conversation


def _ask(llm: LLM, conversations: Sequence[Conversation], params: SamplingParams) -> Iterator[Conversation]:
    """One question of each."""
    asked = conversations[:: params.n]
    params_of = [c.params(params) for c in asked]
    results = llm.iterate([c.prompt_ids for c in asked], params_of, drafting=[c.drafting for c in asked])
    for conversation, result in zip(conversations, results, strict=True):
        conversation.results.append(result)
        yield conversation


def _first_question(llm: LLM, line: PromptLine) -> Any:
    """A chat message for turns, but plain text for --prompt where the model has no chat template."""
    if line.token_ids is not None:
        return line.token_ids
    if line.turns is None:
        return line.prompt
    if line.where == THE_PROMPT and not llm.tokenizer.has_chat_template:
        return line.turns[0]
    return [{"role": "user", "content": line.turns[0]}]


def own_prompts(llm: LLM, texts: Mapping[str, str], limit: int | None = None) -> list[PromptLine]:
    """A command's own texts by name, at most the first `limit`: as chat, or plainly where the model has no chat template."""
    is_chat = llm.tokenizer.has_chat_template
    return [
        PromptLine(f"prompt {name}", name, turns=(text,) if is_chat else None, prompt=None if is_chat else text)
        for name, text in list(texts.items())[:limit]
    ]
