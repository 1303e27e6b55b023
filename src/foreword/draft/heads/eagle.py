"""EAGLE: one layer that continues the target's own features, and so drafts with what the target knows [eagle24].

    eagle      EAGLE-1: features after the final norm; a static tree
    eagle2     the same network; a tree grown by confidence [eagle2]
    eagle3     features from three depths, its own head over a part of the vocabulary; grown by confidence [eagle3]

Width 1, and verifiers that compare distributions, make chains of all three.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, final

from foreword.checkpoint.opened import Checkpoint
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.config import MAX_SPECULATIVE_TOKENS
from foreword.draft.base import BaseDrafter, DraftNeed, Drawn, Plan, RequestView
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
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

_DEFAULTS = {"num_speculative_tokens": 16, "draft_tree_width": 4, "draft_tree_depth": 6}
# How often the candidate of each rank is right, at every depth: what a static tree is built for.
_RANK_PROBS = (0.6, 0.15, 0.07, 0.04)


@dataclass(frozen=True, kw_only=True)
class Eagle3Options(DrafterOptions):
    """What the network grows, and how its weights are held."""

    draft_tree_width: int | None = option(
        None, "candidates per level; 1 drafts a chain, None as the drafter's card says", lowest=1, highest=64
    )
    draft_tree_depth: int | None = option(
        None, "most tokens in a row; None as the drafter's card says", lowest=1, highest=MAX_SPECULATIVE_TOKENS
    )
    draft_confidence_threshold: float = option(0.0, "stop a chain where the network is less sure", lowest=0, highest=1)
    draft_dtype: str | None = option(None, "its weights on the native runtime; None for int4", choices=("int8", "int4"))


@dataclass(frozen=True, kw_only=True)
class EagleOptions(Eagle3Options):
    """Of a network with the target's whole vocabulary."""

    draft_vocab: str | None = option(None, "draft only the tokens of this list of ids (.pt or .json) [frspec25]")


@final
class EagleDrafter(BaseDrafter):
    """Drafts with an EAGLE network.

    Args:
        network: the network, loaded beside its target.
        options: width and depth; what they leave open the network's card says.
        name: "eagle" for a static tree, "eagle2" or "eagle3" for one that is grown.
        draft_mode: whose noise draws guesses.
    """

    drawn = Drawn.CHAINS  # whatever the width: see `Autoregression`

    def __init__(
        self, network: EagleNetwork, options: Eagle3Options, name: str, draft_mode: DraftMode = DraftMode.SHARED
    ) -> None:
        self.name = name
        self.reader = network.reader
        self.need = DraftNeed(taps=network.taps, hidden=not network.taps, can_miss=True)
        width = options.draft_tree_width or setting(network.settings, "draft_tree_width")
        self.default_num_nodes = setting(network.settings, "num_speculative_tokens")
        self.autoregression = Autoregression(
            network.reader,
            Guesser(network.vocab, network.reader.decoder.spec.num_logits, draft_mode),
            width,
            options.draft_confidence_threshold,
            options.draft_tree_depth or setting(network.settings, "draft_tree_depth"),
            partial(_shaped, width) if name == "eagle" else None,
        )

    def start(self, request: RequestView) -> None:
        """Open a sequence slot in the layer's KV cache."""
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
    """A whole number above 0 from a network's card, or the default where it has none."""
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


def make(settings: DrafterSettings, target: Target) -> EagleDrafter:
    """Loads the network beside the target, on its runtime."""
    name, options = settings.name, settings.options
    beside = target.model
    if beside is None:
        raise ConfigError(f"drafter {name} is loaded beside a target that was loaded by name; this one was not")
    theirs = beside.checkpoint
    if not isinstance(theirs, Checkpoint):
        raise ConfigError(
            f"drafter {name} shares the target's embedding, which a model loaded by transformers keeps to "
            f"itself; load the model from its folder instead"
        )
    folder = settings.path or trained_drafter(name, theirs.fingerprint)
    if folder is None:
        raise ConfigError(
            f"drafter {name} needs a network made for this model, and none is installed; give one as "
            f"{name}=PATH (a folder with config.json and model.safetensors, or a hub id), or train one with "
            f"'foreword train'"
        )
    if beside.choice.name == "torch":
        theirs = theirs.as_dtype(beside.choice.dtype)
    files, ids = EagleFiles(folder), drafted_ids(getattr(options, "draft_vocab", None), beside)
    runtime = drafters_runtime(options.draft_dtype, beside.runtime, "int4")
    network = load_network(files, name == "eagle3", target.spec, theirs, runtime, ids)
    return EagleDrafter(network, options, name, settings.draft_mode)


def _type(name: str, summary: str, fits: str, options: type[Eagle3Options], is_grown: bool) -> DrafterType:
    return DrafterType(
        name=name,
        summary=summary,
        needs="a trained head",
        fits=fits,
        make=make,
        options=options,
        takes="PATH",
        runs_model=True,
        reads_states=True,
        variants={"chain": {"draft_tree_width": 1}} if is_grown else {},
    )


_LONG = "one model served for long"
EAGLE3 = _type(
    "eagle3",
    "EAGLE-3: a layer trained to continue the model's hidden states of three depths, expanded into a tree by confidence",
    f"{_LONG}; any text",
    Eagle3Options,
    is_grown=True,
)
EAGLE2 = _type(
    "eagle2",
    "EAGLE-2: the same from the last hidden states alone, expanded into a tree by confidence",
    _LONG,
    EagleOptions,
    is_grown=True,
)
EAGLE = _type(
    "eagle", "EAGLE-1: as `eagle2`, with the same static tree in every step", _LONG, EagleOptions, is_grown=False
)
