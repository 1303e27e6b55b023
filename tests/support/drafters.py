"""Every untrained drafter, by the registry and in further settings, over toy decoders, and a wrapper that checks each proposal."""

import functools
from collections.abc import Callable

from foreword.draft.cascade import CascadeDrafter
from foreword.draft.draft_config import draft_config
from foreword.draft.lookup.ngram_lm import NgramLmDrafter
from foreword.draft.make_drafter import make_drafter
from foreword.draft.model.draft_model import DraftModelOptions, ModelDrafter
from foreword.draft.model.universal import UniversalDrafter
from foreword.draft.registry import drafter_types
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from tests.support.ngram_tables import table_of_texts
from tests.support.toy_decoder import BlurredDecoder, ToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_tokenizers import PairTokenizer, SingleTokenizer


class Checked:
    """A drafter whose proposals are checked: valid trees, within their plans, chances that make sense."""

    def __init__(self, drafter) -> None:
        self.drafter = drafter
        self.num_drafted = 0

    def __getattr__(self, name):
        return getattr(self.drafter, name)

    def propose(self, requests, plans):
        trees = self.drafter.propose(requests, plans)
        assert len(trees) == len(requests)
        for request, plan, tree in zip(requests, plans, trees, strict=True):
            tree.check()
            assert tree.num_known == plan.num_known
            assert list(tree.token_ids[: tree.num_known]) == request.token_ids[request.kv_len :][: plan.num_known]
            assert tree.num_drafted <= plan.num_nodes, f"{tree.num_drafted} nodes, {plan.num_nodes} allowed"
            assert max(tree.depths) - tree.num_known + 1 <= plan.depth, f"{max(tree.depths)} deep, {plan.depth} allowed"
            if tree.accept_probs is not None:
                for node in range(1, tree.num_nodes):
                    assert 0 <= tree.accept_probs[node] <= tree.accept_probs[tree.parents[node]] + 1e-9
            self.num_drafted += tree.num_drafted
        return trees


def by_name(spec: str | dict) -> Callable[[Target], object]:
    return lambda target: make_drafter(draft_config(spec), target)


@functools.cache
def blurred(decoder: ToyDecoder, blur: float) -> BlurredDecoder:
    """One and the same for equal arguments, so that its rows are worked out once."""
    return BlurredDecoder(decoder, blur)


@functools.cache
def pair_model() -> ToyDecoder:
    return ToyDecoder(vocab_size=PairTokenizer.vocab_size, seed=5)


def model_drafter(blur: float = 0.25, **options) -> Callable[[Target], object]:
    def make(target: Target):
        draft = blurred(target.decoder, blur) if blur else target.decoder
        return ModelDrafter(draft, target.spec.vocab_size, DraftModelOptions(**options))

    return make


def universal_drafter(target: Target):
    """A draft model over pairs of letters for a target over single ones."""
    return UniversalDrafter(pair_model(), PairTokenizer(), SingleTokenizer())


def ngram_lm_drafter(target: Target) -> NgramLmDrafter:
    """Counted over what the target says."""
    params = SamplingParams(max_tokens=40)
    size = target.spec.vocab_size
    texts = [[i % size, *plain_tokens(target.decoder, [i % size], params)] for i in range(12)]
    return NgramLmDrafter(table_of_texts(texts, size))


def cascade_drafter(is_merging: bool) -> Callable[[Target], object]:
    def make(target: Target):
        parts = [by_name("suffix"), by_name("recycling"), by_name("lookahead"), model_drafter()]
        return CascadeDrafter([part(target) for part in parts], 1.0, is_merging)

    return make


_PAST = {"method": "suffix", "suffix_decoding_max_cached_requests": 3, "suffix_decoding_max_cached_tokens": 100}
_LOOKAHEAD = {"method": "lookahead", "lookahead_window": 3, "lookahead_ngram": 4, "lookahead_guesses": 2}

# Every drafter that needs nothing but its name is here by itself.
BY_NAME = {one.name: by_name(one.name) for one in drafter_types() if one.drafts and not one.takes}
DRAFTERS: dict[str, Callable[[Target], object]] = {
    **BY_NAME,
    "suffix-chain": by_name({"method": "suffix", "suffix_decoding_tree": False}),
    "suffix-past": by_name(_PAST),
    "recycling-per-request": by_name({"method": "recycling", "recycling_per_request": True, "recycling_top_k": 3}),
    "lookahead-3-4-2": by_name(_LOOKAHEAD),
    "ngram_lm": ngram_lm_drafter,
    "layerskip-tree": by_name({"method": "layerskip", "exit_layer": 1, "draft_tree_width": 3}),
    "draft_model": model_drafter(),
    "draft_model-unsure": model_drafter(draft_confidence_threshold=0.5),
    "draft_model-tree": model_drafter(draft_tree_width=3),
    "universal": universal_drafter,
    "cascade": cascade_drafter(False),
    "cascade-merged": cascade_drafter(True),
}
