"""Looking into a transformers model, and views of it that share its weights."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

Module = Any  # nn.Module hands out its parts as Tensor | Module


def find_layers(model: nn.Module, num_layers: int) -> tuple[str, nn.ModuleList] | None:
    """Path and list of the decoder layers: the outermost list with as many entries as the model has layers."""
    found = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    ]
    return min(found, key=lambda item: item[0].count("."), default=None)


def twin(model: nn.Module, change_config: Callable[[Any], None] | None = None) -> Any:
    """A copy of the module tree that shares all parameters and buffers, with configs of its own.

    Changing the copy's parts or configs leaves the model alone. None where a module's `forward` was replaced (as
    accelerate's hooks do): such a copy would call back into the original.
    """
    if any("forward" in vars(module) for module in model.modules()):
        return None
    return _copied(model, {}, change_config)


def _copied(module: nn.Module, memo: dict[int, Any], change_config: Callable[[Any], None] | None) -> Any:
    if id(module) in memo:
        return memo[id(module)]
    memo[id(module)] = made = copy.copy(module)
    parts = vars(made)
    parts["_modules"] = {
        name: None if child is None else _copied(child, memo, change_config)
        for name, child in vars(module)["_modules"].items()
    }
    parts["_buffers"] = dict(vars(module)["_buffers"])
    config = parts.get("config")
    if config is not None:
        if id(config) not in memo:
            memo[id(config)] = copy.deepcopy(config)
            if change_config is not None:
                change_config(memo[id(config)])
        parts["config"] = memo[id(config)]
    return made


def with_layers(model: nn.Module, path: str, num_layers: int) -> Any:
    """A twin of the model that stops after its first `num_layers` layers; None where there can be no twin."""
    made = twin(model)
    if made is None:
        return None
    parent_path, _, name = path.rpartition(".")
    parent: Module = made.get_submodule(parent_path)
    parent._modules[name] = nn.ModuleList(list(parent._modules[name])[:num_layers])
    return made
