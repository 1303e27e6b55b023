"""A difference between two answers, as text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreword.bench.fidelity import Difference
    from foreword.engine.llm import LLM


def explain(llm: "LLM", difference: "Difference", what: str = "first difference") -> str:
    """The difference with its tokens as text, and whether rounding explains it."""
    plain, other = (token_text(llm, token) for token in (difference.plain_token, difference.other_token))
    kind = "a near-tie of rounding" if difference.is_near_tie else "not a near-tie"
    return (
        f"{what} at token {difference.index}: {plain} plainly, {other} here; "
        f"scores {abs(difference.gap):.2g} apart, rounding moves them by at most {difference.tolerance:.2g}: {kind}"
    )


def token_text(llm: "LLM", token: int | None) -> str:
    """A token as quoted text; None is the end of the answer."""
    return "the end" if token is None else repr(llm.tokenizer.decode([token], skip_special_tokens=False))
