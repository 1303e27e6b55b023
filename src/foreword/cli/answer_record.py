"""What is said about one prompt: the line of `foreword generate --json`."""

from collections.abc import Sequence
from typing import Any

from foreword.cli.conversation import Conversation
from foreword.engine.llm import LLM
from foreword.engine.result import Result


def record(llm: LLM, conversation: Conversation, *, shows_turns: bool = False) -> dict[str, Any]:
    """The JSON of one prompt. Its keys are a contract that other tools read.

    Texts and tokens of several answers are joined, as their counts are summed; `shows_turns` adds each by itself.
    """
    results = conversation.results
    stats = [result.stats for result in results]
    new_tokens, steps = sum(s.new_tokens for s in stats), sum(s.num_steps for s in stats)
    decode_s = sum(s.decode_s for s in stats)
    # The first token of each answer is prefill's.
    decoded = sum(max(s.new_tokens - 1, 0) for s in stats)
    return (
        {
            "id": conversation.line.id,
            "category": conversation.line.category,
            "text": "\n\n".join(result.text for result in results),
            "token_ids": [token for result in results for token in result.token_ids],
            "prompt_tokens": sum(s.prompt_tokens for s in stats),
            "new_tokens": new_tokens,
            "finish_reason": "length" if conversation.is_cut else results[-1].finish_reason,
            "steps": steps,
            "drafted_tokens": sum(s.drafted_tokens for s in stats),
            "accepted_tokens": sum(s.accepted_tokens for s in stats),
            "tokens_per_step": decoded / steps if steps else None,
            "prefill_s": sum(s.prefill_s for s in stats),
            "decode_s": decode_s,
            "decode_tok_per_s": decoded / decode_s if decoded and decode_s > 0 else None,
            "runtime": llm.model.choice.name,
            "dtype": llm.model.choice.dtype,
            "drafter": llm.config.method,
            "seed": results[0].seed,
        }
        | ({"turns": [_turn(result) for result in results]} if shows_turns else {})
        | _logprobs(results)
    )


def _turn(result: Result) -> dict[str, Any]:
    """One answer of a conversation."""
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "prompt_tokens": result.stats.prompt_tokens,
        "new_tokens": result.stats.new_tokens,
        "finish_reason": result.finish_reason,
    }


def _logprobs(results: Sequence[Result]) -> dict[str, Any]:
    """The key "logprobs", one entry for each of `token_ids`, where they were asked for."""
    if any(result.logprobs is None for result in results):
        return {}
    entries = [entry for result in results for entry in result.logprobs or ()]
    return {"logprobs": [{"token_id": e.token_id, "logprob": e.logprob, "top": list(e.top)} for e in entries]}
