"""Self-speculation: the target's own first layers, final norm and head draft [elhoushi24].

The keys and values of the committed text below the exit layer are the target's own, so nothing is kept beside them:
the draft's rows lie where the target's next pass will write, and are taken back before it. Models trained to exit
early draft well; others mostly do not, which costs speed and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from foreword.draft.base import BaseDrafter, Drawn, Plan, RequestView
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.model.autoregress import Autoregression
from foreword.draft.model.guesser import Guesser
from foreword.errors import ConfigError
from foreword.runtime.base import ChainDecoder, Chains, ChainStep, Need, PassOutput
from foreword.sampling.draft_sampling import DraftMode, DraftVocab
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack


@dataclass(frozen=True, kw_only=True)
class LayerSkipOptions(DrafterOptions):
    """Which layers draft, and what they grow."""

    exit_layer: int | None = option(None, "layers of the target that draft; None for a quarter", lowest=1)
    draft_tree_width: int | None = option(None, "candidates per level; None or 1 drafts a chain", lowest=1, highest=64)
    draft_confidence_threshold: float = option(
        0.0, "stop a chain where the first layers are less sure", lowest=0, highest=1
    )


@final
class FirstLayers:
    """`DraftReader` over the target's own cache.

    Args:
        target: whose cache it is.
        num_layers: layers that are run.
    """

    def __init__(self, target: Target, num_layers: int) -> None:
        self.target = target
        self.decoder = target.decoder.first_layers(num_layers)

    def room(self, request: RequestView) -> int:
        """Up to the target's context end."""
        return self.target.spec.context_len - len(request.token_ids)

    def unread(self, request: RequestView) -> list[int]:
        """What the target has not read either: the root, and tokens that were forced."""
        return list(request.token_ids[request.kv_len :])

    def run(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        keep: Sequence[Sequence[int]],
        need: Need,
    ) -> PassOutput:
        """One pass of the first layers; keeps the rows `keep`, whose upper layers hold nothing, until `finish`."""
        cache, slots = self.target.cache, [request.slot for request in requests]
        kv_lens = [cache.length(slot) for slot in slots]
        for slot, kv_len, tree in zip(slots, kv_lens, trees, strict=True):
            self.target.reserve(slot, kv_len + tree.num_nodes)
        output = self.decoder.forward(pack(trees, kv_lens, slots), cache, need)
        for slot, path in zip(slots, keep, strict=True):
            cache.commit(slot, path)
        return output

    @property
    def rolls_out(self) -> bool:
        """Whether the runtime drafts whole chains in one call."""
        return isinstance(self.decoder, ChainDecoder)

    def roll_out(self, requests: Sequence[RequestView], chains: Chains) -> list[list[ChainStep]]:
        """Go on with chains; their rows are kept until `finish`."""
        assert isinstance(self.decoder, ChainDecoder)
        chains = replace(chains, slots=[request.slot for request in requests])
        for slot, draws in zip(chains.slots, chains.draws, strict=True):
            self.target.reserve(slot, self.target.cache.length(slot) + len(draws))
        return self.decoder.draft_chains(chains, self.target.cache)

    def finish(self, requests: Sequence[RequestView]) -> None:
        """Take back all rows of the draft."""
        for request in requests:
            self.target.cache.truncate(request.slot, request.kv_len)


@final
class LayerSkipDrafter(BaseDrafter):
    """Drafts with the first `exit_layer` layers of the target."""

    name = "layerskip"
    drawn = Drawn.CHAINS  # whatever `draft_tree_width`: see `Autoregression`

    def __init__(self, target: Target, options: LayerSkipOptions, draft_mode: DraftMode = DraftMode.SHARED) -> None:
        num_layers = target.spec.num_layers
        exit_layer = options.exit_layer or max(1, num_layers // 4)
        if exit_layer >= num_layers:
            raise ConfigError(
                f"exit_layer is {exit_layer}; allowed: 1 to {num_layers - 1}, as the target has {num_layers} layers"
            )
        vocab_size = target.spec.vocab_size
        guesser = Guesser(DraftVocab(vocab_size), vocab_size, draft_mode)
        self.autoregression = Autoregression(
            FirstLayers(target, exit_layer), guesser, options.draft_tree_width or 1, options.draft_confidence_threshold
        )

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One pass of the first layers a depth for all requests together."""
        return self.autoregression.propose(requests, plans)


def make(settings: DrafterSettings, target: Target) -> LayerSkipDrafter:
    """Runs on the target itself."""
    return LayerSkipDrafter(target, settings.options, settings.draft_mode)


LAYERSKIP = DrafterType(
    name="layerskip",
    summary="self-speculation: drafts with the model's own first layers",
    fits="models trained to exit early",
    make=make,
    options=LayerSkipOptions,
    runs_model=True,
    in_tune=False,
)
