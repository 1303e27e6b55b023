"""Any transformers model as a decoder: general, and slower than foreword's own.

All nodes of all requests are one row of tokens to the model, so its weights are read once per pass, whatever the batch,
and nothing is padded: the 4-D mask (`hf_mask`) keeps requests, siblings and windows apart, `position_ids` say where each
node stands, the cache (`hf_cache`) hands out the committed rows of all requests side by side. Attention over the other
requests' keys is computed and masked away, which is cheap next to reading the weights once per request.

Which models can be run so is found out by trying (`hf_check`).
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import ConfigError
from foreword.runtime.base import KVCache, Need, PassOutput
from foreword.runtime.torch_output import draw_tokens, top_tokens
from foreword.target.hf_cache import HFCache
from foreword.target.hf_mask import MaskPlan
from foreword.target.hf_modules import find_layers, with_layers
from foreword.tree.pack import PackedBatch


def cache_argument(model: Any) -> str | None:
    """What the model's `forward` calls its cache; None if it takes none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in parameters), None)


@final
class HFDecoder:
    """`Decoder` of runtime/base.py over a transformers model, which it shares and never changes.

    Taps and hidden rows come in the model's dtype, logits in float32.

    Args:
        model: a causal language model.
        spec: what it is; a smaller `vocab_size` than the head's leaves the head's last rows out.
        plan: the masks that it wants.
    """

    has_own_threads = False

    def __init__(self, model: Any, spec: ModelSpec, plan: MaskPlan) -> None:
        self.model, self.plan = model, plan
        self._spec = spec
        self._cache_argument = cache_argument(model) or "past_key_values"
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._depth = spec.num_layers  # layers that keep rows

    @property
    def spec(self) -> ModelSpec:
        """What it is."""
        return self._spec

    @property
    def num_weight_bytes(self) -> int:
        """Memory that the weights take."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    @property
    def device(self) -> torch.device:
        """Where token ids go."""
        return self.model.get_input_embeddings().weight.device

    def new_cache(self) -> HFCache:
        """An empty cache."""
        return HFCache()

    def trimmed(self, vocab_size: int) -> "HFDecoder":
        """The same without the head's rows from `vocab_size` on."""
        return HFDecoder(self.model, replace(self._spec, vocab_size=vocab_size), self.plan)

    def first_layers(self, num_layers: int) -> "HFDecoder":
        """The first `num_layers` layers with the same embedding, final norm and head, sharing the weights."""
        if not 1 <= num_layers <= self._spec.num_layers:
            raise ConfigError(f"{num_layers} first layers are wanted; allowed: 1 to {self._spec.num_layers}")
        path, _ = self.layers()
        part = with_layers(self.model, path, num_layers)
        if part is None:
            raise ConfigError(
                f"the first layers of {self._spec.family} cannot be run alone, as hooks replace its modules' forward; "
                f"load the model without a device map, or use another drafter"
            )
        return HFDecoder(part, replace(self._spec, num_layers=num_layers), self.plan)

    @torch.no_grad()
    def forward(
        self, batch: PackedBatch, cache: KVCache, need: Need, inputs: Float[Tensor, "nodes hidden"] | None = None
    ) -> PassOutput:
        """Run all nodes of all requests through the layers; leaves their keys and values in the cache's scratch."""
        assert isinstance(cache, HFCache), f"the cache is a {type(cache).__name__}, not this decoder's"
        top_nodes = need.top_nodes if need.top_k else ()
        rows = sorted({*need.logits, *top_nodes, *(wanted.node for wanted in need.draws)})
        wants_states = need.hidden or any(tap < self._spec.num_layers for tap in need.taps)
        options: dict[str, Any] = {"output_hidden_states": True} if wants_states else {}
        if self._keeps_rows:  # one row at least: not every model takes none
            options["logits_to_keep"] = torch.tensor(rows or [0], device=self.device)
        with _LastLayer(self, self._spec.num_layers in need.taps) as last:
            result = self.model(
                **self._tokens(batch, inputs),
                **{self._cache_argument: cache.begin_pass(batch, self._depth)},
                attention_mask=self.plan.masks(batch, self.device, self.model.dtype),
                position_ids=torch.from_numpy(batch.positions).to(self.device, torch.long)[None],
                use_cache=True,
                return_dict=True,
                **options,
            )
        output = self._states(result, need, last.output)
        if rows:
            logits = result.logits[0] if self._keeps_rows else result.logits[0, torch.tensor(rows, device=self.device)]
            self._fill(output, logits[:, : self._spec.vocab_size].float(), rows, need, top_nodes)
        return output

    def _fill(
        self,
        output: PassOutput,
        logits: Float[Tensor, "rows vocab"],
        rows: Sequence[int],
        need: Need,
        top_nodes: Sequence[int],
    ) -> None:
        """Draws, logits and most probable tokens from the rows of the head."""
        row_of = {node: row for row, node in enumerate(rows)}
        output.choices = draw_tokens(logits, need.draws, row_of, need.names)
        if need.logits:
            output.logits = logits[[row_of[node] for node in need.logits]]
        if top_nodes:
            output.top_ids, output.top_logprobs = top_tokens(logits[[row_of[node] for node in top_nodes]], need.top_k)

    def _states(self, result: Any, need: Need, last: Tensor | None) -> PassOutput:
        """Taps and the final norm's output."""
        output, num_layers = PassOutput(), self._spec.num_layers
        if not (need.taps or need.hidden):
            return output
        states: Sequence[Tensor] = getattr(result, "hidden_states", None) or ()
        if len(states) != num_layers + 1 and (need.hidden or set(need.taps) != {num_layers}):
            raise ConfigError(
                f"{self._spec.family} hands out {len(states)} hidden states, not {num_layers + 1}; drafters that read "
                f"them cannot run beside it; use one that does not, such as ngram or recycling"
            )
        if need.taps:
            taps = [last if tap == num_layers else states[tap] for tap in need.taps]
            output.taps = torch.stack([tap[0].to(self.device) for tap in taps if tap is not None], dim=1)
        if need.hidden:
            output.hidden = states[num_layers][0].to(self.device)
        return output

    def _tokens(self, batch: PackedBatch, inputs: Float[Tensor, "nodes hidden"] | None) -> dict[str, Tensor]:
        if inputs is not None:
            wanted = (batch.num_nodes, self._spec.hidden_size)
            if tuple(inputs.shape) != wanted:
                raise ConfigError(
                    f"inputs have shape {tuple(inputs.shape)}; this pass wants {wanted}, one row per node"
                )
            return {"inputs_embeds": inputs[None].to(self.device, self.model.dtype)}
        lowest, highest = int(batch.token_ids.min()), int(batch.token_ids.max())
        if lowest < 0 or highest >= self._spec.vocab_size:
            raise ConfigError(
                f"token ids from {lowest} to {highest}; the model knows 0 to {self._spec.vocab_size - 1}; "
                f"was the text encoded with another model's tokenizer?"
            )
        return {"input_ids": torch.from_numpy(batch.token_ids).to(self.device, torch.long)[None]}

    def layers(self) -> tuple[str, Any]:
        """Path and list of the model's layers."""
        found = find_layers(self.model, self._spec.num_layers)
        if found is None:
            raise ConfigError(
                f"{self._spec.family} has no list of {self._spec.num_layers} layers to look into; use a drafter that "
                f"needs none, such as ngram or recycling"
            )
        return found


class _LastLayer:
    """Catches what the last layer hands to the final norm: transformers' hidden states leave it out."""

    def __init__(self, decoder: HFDecoder, is_wanted: bool) -> None:
        self._layer = decoder.layers()[1][-1] if is_wanted else None
        self.output: Tensor | None = None

    def __enter__(self) -> "_LastLayer":
        self._handle = None if self._layer is None else self._layer.register_forward_hook(self._catch)
        return self

    def __exit__(self, *error: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _catch(self, layer: Any, args: Any, output: Any) -> None:
        self.output = output[0] if isinstance(output, tuple) else output
