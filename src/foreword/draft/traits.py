"""What a method, one drafter or several, is thought to cost before it has drafted: by the traits of its drafters.

A drafter that is not registered, one of a program's own, is taken for the dearest kind.
"""

from foreword.draft.names import split_list
from foreword.draft.registry import drafter_names, drafter_type


def num_looked_up(method: str) -> int:
    """Of a cascade, how many drafters come before the first that runs a model; 0 where none runs one."""
    runs = _has(method, "runs_model")
    return runs.index(True) if True in runs else 0


def is_looked_up(method: str) -> bool:
    """Whether none of them runs a model."""
    return not any(_has(method, "runs_model"))


def needs_to_see(method: str) -> bool:
    """Whether one can only guess after a pass that it has seen, as those do that read the target's hidden states."""
    return any(_has(method, "reads_states", of_others=False))


def reads_near(method: str) -> bool:
    """Whether none of them reads a whole text for its first guess."""
    return not any(_has(method, "reads_whole_text"))


def _has(method: str, trait: str, of_others: bool = True) -> list[bool]:
    """A trait of each drafter of a method; `of_others` where it is not registered."""
    names = [part.partition("=")[0] for part in split_list(method)]
    return [getattr(drafter_type(name), trait) if name in drafter_names() else of_others for name in names]
