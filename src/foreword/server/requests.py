"""From what a client sends to what the engine takes; what cannot be done is refused by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from foreword.server.errors import ApiError, invalid
from foreword.server.settings import ServerSettings
from foreword.server.tools.grammar import JSON_SPACING
from foreword.server.tools.use import ToolUse
from foreword.server.wire.chat import ChatMessage, ChatRequest
from foreword.server.wire.common import Content, SamplingFields, TextPart
from foreword.server.wire.completions import CompletionRequest
from foreword.validate import shown

NO_TOOLS = ToolUse()
COMPLETION_TOKENS = 16  # where a completion names no max_tokens, as the OpenAI API has it
_ROLES = {"developer": "system"}  # newer name, older name that templates know
ALL_ROLES = ("system", "developer", "user", "assistant", "tool")
_SAME_NAMES = (
    "seed", "temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty",
    "min_tokens", "stop_token_ids", "allowed_token_ids", "bad_words", "ignore_eos", "n",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What bounds a request: the server's settings and the model's context."""

    settings: ServerSettings
    context_len: int


def check_model(asked: str | None, settings: ServerSettings) -> None:
    """404 for a model that is not the served one; none named is the served one."""
    if asked and asked != settings.model_name:
        raise ApiError(
            404, f"the model {asked!r} is not served here; this server has {settings.model_name!r}",
            param="model", code="model_not_found",
        )  # fmt: skip


def chat_params(request: ChatRequest, limits: Limits, tools: ToolUse = NO_TOOLS) -> SamplingParams:
    """Options of a chat's answer. Without `max_tokens` it may fill the context."""
    _refuse(request, {"audio": None, "functions": "tools", "function_call": "tool_choice"})
    if any(kind != "text" for kind in request.modalities or ()):
        raise invalid(f"modalities is {request.modalities}; allowed: ['text']", "modalities")
    most = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    grammar = tools.grammar
    if grammar is not None:
        for place, tool in enumerate(tools.tools):
            if tool in tools.allowed:
                check_grammar(f"tools[{place}].function.parameters", Grammar.json_schema(tool.schema), limits.settings)
        check_grammar("tools", grammar, limits.settings)
        if _grammar(request, limits.settings) is not None:
            raise invalid("the answer cannot be a required call and a response_format at once", "tool_choice")
    most = limits.context_len if most is None else most
    return tools.params(_params(request, limits, most, logprobs, grammar))


def completion_params(request: CompletionRequest, limits: Limits) -> SamplingParams:
    """Options of a completion."""
    _refuse(request, {"suffix": None})
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise invalid("best_of is not supported beyond n; leave it out", "best_of")
    most = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    params = _params(request, limits, most, request.logprobs, None)
    return replace(params, prompt_logprobs=request.logprobs) if request.echo else params


def predicted_ids(request: SamplingFields, tokenizer: Tokenizer) -> list[int] | None:
    """Token ids of a predicted output; None where there is none."""
    if request.prediction is None:
        return None
    return tokenizer.encode(text_of(request.prediction.content, "prediction.content"), add_special_tokens=False)


def drafting_params(request: SamplingFields) -> DraftingParams:
    """How one request is drafted for."""
    asked, prediction = request.speculative, request.prediction
    reference = None if prediction is None else text_of(prediction.content, "prediction.content")
    return DraftingParams(
        enabled=asked is None or asked.enabled,
        num_speculative_tokens=None if asked is None else asked.num_speculative_tokens,
        reference=reference or None,
        remember=asked is None or asked.remember,
    )


def chat_ids(request: ChatRequest, tokenizer: Tokenizer, tools: ToolUse = NO_TOOLS) -> list[int]:
    """Token ids of a conversation, with what it says of tools."""
    messages = [message_of(message, place) for place, message in enumerate(request.messages)]
    return conversation_ids(
        tools.messages(messages),
        tokenizer,
        {**(request.chat_template_kwargs or {}), **tools.template_options},
        opens_turn=request.add_generation_prompt,
        continues=request.continue_final_message,
    )


def conversation_ids(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
    *,
    opens_turn: bool = True,
    continues: bool = False,
) -> list[int]:
    """Token ids of messages, with the opening of the assistant's turn, or continuing the last message."""
    if not tokenizer.has_chat_template:
        raise invalid("this model has no chat template; use /v1/completions", "messages")
    if not continues:
        return tokenizer.apply_chat_template(messages, opens_turn, options)
    final = str(messages[-1].get("content") or "").strip()
    if not final:
        raise invalid("continue_final_message continues the last message, which is empty", "messages")
    text = tokenizer.render_chat(messages, False, options)
    end = text.rfind(final)
    if end < 0:
        raise invalid(
            "the model's chat template changes the last message, so it cannot be continued", "continue_final_message"
        )
    return tokenizer.encode(text[: end + len(final)], add_special_tokens=False)


def message_of(message: ChatMessage, place: int) -> dict[str, Any]:
    """As templates take it."""
    where = f"messages[{place}]"
    if message.role not in ALL_ROLES:
        raise invalid(f"{where}.role is {message.role[:40]!r}; allowed: {', '.join(ALL_ROLES)}", f"{where}.role")
    content = None if message.content is None else text_of(message.content, f"{where}.content")
    if content is None and not message.tool_calls:
        raise invalid(f"{where} has no content; give a text", f"{where}.content")
    given = message.model_dump(exclude_none=True)
    return {**given, "role": _ROLES.get(message.role, message.role), "content": content or ""}


def text_of(content: Content, where: str) -> str:
    """The text of a message; parts of other kinds are refused."""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part_text(part: TextPart, where: str) -> str:
    if part.type not in ("text", "input_text", "output_text") or part.text is None:
        raise invalid(f"{where} is of type {part.type!r}; this server reads parts of type 'text' alone", where)
    return part.text


def prompts_of(request: CompletionRequest, settings: ServerSettings) -> list[str | list[int]]:
    """One or many."""
    given = request.prompt
    prompts: list[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
    if not prompts:
        raise invalid("prompt is empty; give a text, token ids, or a list of them", "prompt")
    if len(prompts) > settings.max_prompts:
        raise invalid(f"prompt has {len(prompts)} prompts; allowed: at most {settings.max_prompts}", "prompt")
    return prompts


def _params(
    request: SamplingFields, limits: Limits, most: int, logprobs: int | None, grammar: Grammar | None
) -> SamplingParams:
    settings = limits.settings
    if request.n is not None and not 1 <= request.n <= settings.max_n:
        raise invalid(f"n is {request.n}; allowed: 1 to {settings.max_n}", "n")
    if logprobs is not None and not 0 <= logprobs <= settings.max_logprobs:
        raise invalid(f"{logprobs} top logprobs are asked for; allowed: 0 to {settings.max_logprobs}", "logprobs")
    if request.min_tokens is not None and request.min_tokens > most:
        raise invalid(f"min_tokens is {request.min_tokens}, more than max_tokens, {most}", "min_tokens")
    given = {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    stop = () if request.stop is None else request.stop
    return SamplingParams(
        **given,
        max_tokens=min(most, limits.context_len),
        top_k=max(request.top_k or 0, 0),  # -1 is off too
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logit_bias=_logit_bias(request.logit_bias),
        logprobs=logprobs,
        grammar=grammar if grammar is not None else _grammar(request, settings),
    )


def _logit_bias(given: Mapping[str, float] | None) -> dict[int, float]:
    """Clients send token ids as keys of JSON, which are texts."""
    biases = {}
    for key, bias in (given or {}).items():
        if not key.isascii() or not key.isdecimal() or len(key) > 9:
            raise invalid(f"logit_bias has the key {key[:40]!r}; allowed: token ids", "logit_bias")
        biases[int(key)] = bias
    return biases


def _grammar(request: SamplingFields, settings: ServerSettings) -> Grammar | None:
    """What the answer must look like, said in one of several ways, at most one of them."""
    found = [*_of_response_format(request), *_of_structured_outputs(request)]
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise invalid(f"{names} both say what the answer must look like; leave one out", found[1][0])
    for name, grammar in found:
        check_grammar(name, grammar, settings)
        return grammar
    return None


def check_grammar(name: str, grammar: Grammar, settings: ServerSettings) -> None:
    """Refuse one that is too large to compile for a stranger, or that cannot be used."""
    size = len(grammar.source.encode(errors="replace"))
    if size > settings.max_grammar_bytes:
        raise invalid(f"{name} has {size} bytes; allowed: at most {settings.max_grammar_bytes}", name)
    if problem := grammar.problem():
        raise invalid(f"{name} cannot be used: {problem}", name)


def _of_response_format(request: SamplingFields) -> list[tuple[str, Grammar]]:
    asked = request.response_format
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [("response_format", _json({"type": "object"}))]
    if asked.type == "json_schema":
        if asked.json_schema is None or not isinstance(asked.json_schema.schema_, dict):
            raise invalid(
                "response_format of type json_schema needs json_schema: {name, schema}", "response_format.json_schema"
            )
        return [("response_format", _json(asked.json_schema.schema_))]
    raise invalid(
        f"response_format is of type {asked.type!r}; allowed: text, json_object, json_schema", "response_format.type"
    )


def _json(schema: Mapping[str, Any]) -> Grammar:
    """JSON that fits a schema, in one line."""
    return Grammar.json_schema({"x-guidance": JSON_SPACING, **schema})


def _of_structured_outputs(request: SamplingFields) -> list[tuple[str, Grammar]]:
    asked = request.structured_outputs
    json_, regex, choice = request.guided_json, request.guided_regex, request.guided_choice
    found: list[tuple[str, Grammar]] = []
    if asked is not None:
        for name in ("grammar", "structural_tag"):
            if getattr(asked, name) is not None:
                raise invalid(f"structured_outputs.{name} is not supported; use json, regex or choice", name)
        json_ = json_ if asked.json_ is None else asked.json_
        regex = regex if asked.regex is None else asked.regex
        choice = choice if asked.choice is None else asked.choice
        if asked.json_object:
            found.append(("structured_outputs.json_object", Grammar.json_schema({"type": "object"})))
    if json_ is not None:
        found.append(("structured_outputs.json", Grammar.json_schema(json_)))
    if regex is not None:
        if not regex:
            raise invalid("structured_outputs.regex is empty; give an expression", "structured_outputs.regex")
        found.append(("structured_outputs.regex", Grammar.regex(regex)))
    if choice is not None:
        if not choice or not all(choice):
            raise invalid(
                f"structured_outputs.choice is {shown(choice)}; give texts of at least one character",
                "structured_outputs.choice",
            )
        found.append(("structured_outputs.choice", Grammar.choice(choice)))
    return found


def _refuse(request: SamplingFields, names: Mapping[str, str | None]) -> None:
    """What this server cannot do, by name; beside it what to use instead."""
    for name, instead in names.items():
        if getattr(request, name) not in (None, ""):
            raise invalid(f"{name} is not supported; {f'use {instead}' if instead else 'leave it out'}", name)
