"""What a caller gets of a request that has ended."""

from foreword.engine.request import Request
from foreword.engine.result import Result
from foreword.target.model_source import ModelSource


def result_of(request: Request, model: ModelSource) -> Result:
    """Its result; raises the error that ended it before its time."""
    if request.error is not None:
        raise request.error
    params, new_ids = request.params, request.new_ids
    assert request.finish_reason is not None, "a result is made of a request that has ended"
    assert params.seed is not None
    if request.text is not None:
        text = request.text.finish()
    else:
        text = model.tokenizer.decode(new_ids) if new_ids else ""
    return Result(
        prompt_token_ids=request.token_ids[: request.prompt_len],
        token_ids=new_ids,
        text=text,
        finish_reason=request.finish_reason,
        seed=params.seed,
        stats=request.stats,
        sample_index=request.sampler.sample_index,
        stop_string=None if request.text is None else request.text.stop_string,
        logprobs=None if params.logprobs is None else request.logprobs,
        prompt_logprobs=None if params.prompt_logprobs is None else request.prompt_logprobs,
        request_id=request.public_id,
        drafted_by=request.drafted_by,
    )
