"""EAGLE: one layer that continues the target's own features, and so drafts with what the target knows [eagle24].

    eagle      EAGLE-1: features after the final norm; a static tree
    eagle2     the same network; a tree grown by confidence [eagle2]
    eagle3     features from three depths, its own head over a part of the vocabulary; grown by confidence [eagle3]

Width 1, and rules that compare distributions, make chains of all three.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, final

from foreword.checkpoint.opened import Checkpoint
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.config import DraftConfig
from foreword.draft.base import BaseDrafter, DraftNeed, Drawn, Plan, RequestView
from foreword.draft.heads.eagle_files import EagleFiles
from foreword.draft.heads.eagle_network import EagleNetwork, load_network
from foreword.draft.heads.eagle_tree import ShapedGrowth
from foreword.draft.model.autoregress import Autoregression
from foreword.draft.model.draft_vocab import drafted_ids
from foreword.draft.model.drafter_runtime import drafters_runtime
from foreword.draft.model.guesser import Guesser
from foreword.errors import CheckpointError, ConfigError
from foreword.runtime.base import PassOutput
from foreword.sampling.draft_sampling import DraftMode
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import PackedBatch
from foreword.tree.shapes import best_first
from foreword.verify.verdict import Verdict

KINDS = ("eagle", "eagle2", "eagle3")
_DEFAULTS = {"num_speculative_tokens": 16, "draft_tree_width": 4, "draft_tree_depth": 6}
# How often the candidate of each rank is right, at every depth: what a static tree is built for.
_RANK_PROBS = (0.6, 0.15, 0.07, 0.04)


@final
class EagleDrafter(BaseDrafter):
    """Drafts with an EAGLE network.

    Args:
        network: the network, loaded beside its target.
        config: method, width, depth and whose noise; what it leaves open the network's card says.
    """

    drawn = Drawn.CHAINS  # whatever the width: see `Autoregression`

    def __init__(self, network: EagleNetwork, config: DraftConfig) -> None:
        self.name = config.method
        self.reader = network.reader
        self.need = DraftNeed(taps=network.taps, hidden=not network.taps, can_miss=True)
        width = config.draft_tree_width or setting(network.settings, "draft_tree_width")
        self.default_num_nodes = setting(network.settings, "num_speculative_tokens")
        self.autoregression = Autoregression(
            network.reader,
            Guesser(network.vocab, network.reader.decoder.spec.num_logits, DraftMode[config.draft_noise.upper()]),
            width,
            config.draft_confidence_threshold,
            config.draft_tree_depth or setting(network.settings, "draft_tree_depth"),
            partial(_shaped, width) if config.method == "eagle" else None,
        )

    def start(self, request: RequestView) -> None:
        """Open a region of the layer's cache."""
        self.reader.start(request)

    def stop(self, request: RequestView) -> None:
        """Free it."""
        self.reader.stop(request)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One pass of the layer a depth for all requests together."""
        return self.autoregression.propose(requests, plans)

    def observe(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        output: PassOutput,
    ) -> None:
        """Collect the features of what was committed."""
        features = output.hidden if output.taps is None else output.taps
        assert features is not None, "features were asked for"
        self.reader.observe(requests, verdicts, batch, features)


def setting(card: Any, name: str) -> int:
    """A whole number above 0 from a network's card, or the usual one where it says nothing."""
    value = card.get(name, _DEFAULTS[name])
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"the drafter's card says {name} = {value!r}; allowed: a whole number, 1 or above")
    return value


@cache
def _shape(width: int, num_nodes: int, depth: int) -> Any:
    spare = [_RANK_PROBS[-1] / 2**rank for rank in range(1, width - len(_RANK_PROBS) + 1)]
    return best_first([[*_RANK_PROBS[:width], *spare]] * depth, num_nodes, depth)


def _shaped(width: int, num_nodes: int, depth: int) -> ShapedGrowth:
    return ShapedGrowth(_shape(width, num_nodes, depth))


def make(config: DraftConfig, target: Target) -> EagleDrafter:
    """For the registry: loads the network beside the target, on its runtime."""
    beside = target.model
    if beside is None:
        raise ConfigError(
            f"drafter {config.method} is loaded beside a target that was loaded by name; this one was not"
        )
    theirs = beside.checkpoint
    if not isinstance(theirs, Checkpoint):
        raise ConfigError(
            f"drafter {config.method} borrows the target's embedding, which a model held by transformers keeps to "
            f"itself; load the model from its folder instead"
        )
    folder = config.model or trained_drafter(config.method, theirs.fingerprint)
    if folder is None:
        raise ConfigError(
            f"drafter {config.method} needs a network made for this model, and none comes with foreword; give one as "
            f"{config.method}=PATH (a folder with config.json and model.safetensors, or a hub id), or train one with "
            f"'foreword train'"
        )
    if beside.choice.name == "torch":
        theirs = theirs.as_dtype(beside.choice.dtype)
    files, ids = EagleFiles(folder), drafted_ids(config, beside)
    runtime = drafters_runtime(config, beside.runtime, "int4")
    network = load_network(files, config.method == "eagle3", target.spec, theirs, runtime, ids)
    return EagleDrafter(network, config)
