"""A package of drafters as pip would have installed it: modules and a dist-info folder with entry points."""

from collections.abc import Mapping
from pathlib import Path

STUTTER = """
from foreword.draft.base import BaseDrafter, known_ids
from foreword.draft.drafter_type import DrafterType
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.tree.draft_tree import DraftTree
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options(DrafterOptions):
    repeats: int = option(1, "copies of the last token that are drafted", lowest=1, highest=9)


class Drafter(BaseDrafter):
    name = "stutter"

    def __init__(self, repeats):
        self.repeats = repeats

    def propose(self, requests, plans):
        return [self.tree(r, plan) for r, plan in zip(requests, plans)]

    def tree(self, request, plan):
        length = min(plan.num_nodes, plan.depth, self.repeats)
        return DraftTree.chain(known_ids(request, plan), [request.token_ids[-1]] * length)


STUTTER = DrafterType(
    name="stutter", summary="says the last token again", options=Options,
    make=lambda settings, target: Drafter(settings.options.repeats),
)
NOT_ONE = "a text"
"""


def install(folder: Path, entries: Mapping[str, str], modules: Mapping[str, str]) -> None:
    """Write a package; `entries` are names of drafters and "module:object"."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    info = folder / "plugin_of_a_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-a-test\nVersion: 1.0\n")
    lines = "".join(f"{name} = {place}\n" for name, place in entries.items())
    (info / "entry_points.txt").write_text(f"[foreword.drafters]\n{lines}")
