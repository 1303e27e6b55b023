"""Policies by name: how the draft length is chosen. A new one is a file with a `make` function, and a line here."""

from importlib import import_module

from foreword.engine.step import Controller
from foreword.errors import UnknownNameError
from foreword.target.target import Target

POLICIES: dict[str, str] = {
    "fixed": "foreword.engine.fixed_policy",  # always the same number of nodes
    "history": "foreword.adapt.history",  # longer after good steps, shorter after bad ones
    "adaptive": "foreword.adapt.controller",  # from measured pass times and observed acceptance
}


def check_policy(name: str) -> None:
    """Raise `UnknownNameError`, which lists the names, if there is no such policy."""
    if not isinstance(name, str) or name not in POLICIES:
        raise UnknownNameError("policy", name, POLICIES)


def make_controller(name: str, target: Target, num_nodes: int, drafter: str) -> Controller:
    """The policy of this name, for a drafter of this name that is asked for at most `num_nodes` nodes per step."""
    check_policy(name)
    return import_module(POLICIES[name]).make(target, num_nodes, drafter)
