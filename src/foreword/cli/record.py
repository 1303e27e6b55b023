"""What is said about one prompt: the line of `foreword generate --json`."""

from typing import Any

from foreword.cli.conversation import Conversation
from foreword.engine.llm import LLM


def record(llm: LLM, conversation: Conversation) -> dict[str, Any]:
    """The JSON of one prompt. Its keys are a contract that other tools read."""
    results = conversation.results
    stats = [result.stats for result in results]
    new_tokens, steps = sum(s.new_tokens for s in stats), sum(s.num_steps for s in stats)
    decode_s = sum(s.decode_s for s in stats)
    # The first token of each answer is prefill's.
    decoded = sum(max(s.new_tokens - 1, 0) for s in stats)
    return {
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
