"""How much memory keys and values may take."""

from dataclasses import dataclass

import torch

from foreword.runtime.base import Decoder
from foreword.runtime.native_load import available_bytes

MAX_FINISHED = 64  # regions of finished requests
_UNKNOWN_FINISHED = 2**30  # bytes for these where the free memory is not known
_TOTAL_SHARE, _FINISHED_SHARE = 0.75, 0.125  # of the memory that is free


@dataclass(frozen=True)
class KVBudget:
    """None for no bound but the machine's."""

    total_bytes: int | None = None
    finished_bytes: int | None = None  # of it, for regions of finished requests
    max_finished: int = 0  # such regions; 0: every prompt is read whole


def kv_budget(decoder: Decoder, kv_cache_bytes: int | None = None, prefix_cache: bool = True) -> KVBudget:
    """What was asked for; otherwise a share of what is free on the decoder's device just now."""
    max_finished = MAX_FINISHED if prefix_cache else 0
    if kv_cache_bytes is not None:
        return KVBudget(kv_cache_bytes, kv_cache_bytes, max_finished)
    return default_budget(free_bytes(decoder), max_finished)


def default_budget(free: int | None, max_finished: int = MAX_FINISHED) -> KVBudget:
    """Three quarters of the free memory, an eighth of it for regions of finished requests; no bound where it is not known."""
    if free is None:
        return KVBudget(None, _UNKNOWN_FINISHED, max_finished)
    return KVBudget(int(free * _TOTAL_SHARE), int(free * _FINISHED_SHARE), max_finished)


def free_bytes(decoder: Decoder) -> int | None:
    """Memory that is free where a decoder keeps its keys and values; None where that is not known."""
    device = getattr(decoder, "device", torch.device("cpu"))
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_bytes() if device.type == "cpu" else None
