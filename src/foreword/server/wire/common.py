"""What requests of all endpoints share."""

import logging
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

logger = logging.getLogger(__name__)

_told: set[str] = set()  # names of fields that were ignored
_MOST_TOLD = 1000

TokenId = Annotated[int, Field(ge=0)]


class Wire(BaseModel):
    """JSON of a client: true is no number, "yes" is not true. Fields that are not known are ignored, and named in the log once."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), strict=True)

    def model_post_init(self, _: Any) -> None:
        """Name what is ignored."""
        for name in self.model_extra or ():
            where = f"{type(self).__name__}.{name[:64]!r}"
            if where not in _told and len(_told) < _MOST_TOLD:
                _told.add(where)
                logger.info("a field that is not known was ignored: %s", where)


class TextPart(Wire):
    """A part of a message."""

    type: str
    text: str | None = None


Content = str | list[TextPart]


class Prediction(Wire):
    """A text that the answer is expected to resemble."""

    type: Literal["content"] = "content"
    content: Content


class Speculative(Wire):
    """Speculation of one request: foreword's own field."""

    enabled: bool = True
    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    remember: bool = True


class StreamOptions(Wire):
    """Of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Wire):
    """A named schema."""

    name: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    """What an answer must look like."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(Wire):
    """vLLM's way to say it."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None


class SamplingFields(Wire):
    """Options of sampling that chat and completions share, vLLM's among them; None is the server's default."""

    model: str | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None

    prediction: Prediction | None = None
    speculative: Speculative | None = None
    include_speculation: bool = False
    return_token_ids: bool = False
