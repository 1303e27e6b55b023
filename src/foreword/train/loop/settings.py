"""What a user may set about a training run."""

from dataclasses import dataclass

import torch

from foreword.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of `foreword train`, of all methods; `ConfigError` for values that cannot be."""

    time_budget_s: float = 7200.0  # for everything, data included
    num_tokens: int = 1_000_000  # of answers; fewer where the time for data runs out first
    max_new_tokens: int = 256
    draft_vocab_size: int = 8000
    unroll: int = 4  # eagle3: steps of the training-time test
    num_heads: int = 4  # medusa: number of heads, the deepest draft
    head_layers: int = 1  # medusa: residual layers per head
    share_output: bool = True  # medusa: one output matrix for all heads
    num_layers: int = 3  # draft_model: of the target's layers
    token_weight: float = 0.1  # eagle: of the tokens' cross-entropy, beside the features' distance
    soft_targets: float = 0.5  # medusa, draft_model: weight of the target's distribution, beside its top-1 token
    lora_rank: int = 32  # medusa2: of the adapters that tune the target
    heads_weight: float = 0.01  # medusa2: of the heads' loss in what tunes the target, beside the divergence
    batch_tokens: int = 512  # small: within hours, steps are worth more than smooth gradients
    max_len: int = 512
    learning_rate: float = 1e-3
    seed: int = 0
    eval_every_s: float = 300.0
    max_steps: int | None = None
    dtype: torch.dtype = torch.bfloat16
    data_share: float = 0.4  # most of the budget that the target's answers may take

    def __post_init__(self) -> None:
        lowest = {
            "num_tokens": 1,
            "max_new_tokens": 2,
            "draft_vocab_size": 1,
            "unroll": 1,
            "num_heads": 1,
            "head_layers": 1,
            "num_layers": 1,
            "lora_rank": 1,
            "batch_tokens": 2,
            "max_len": 2,
        }
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed: {least} or above")
        if not self.time_budget_s > 0:
            raise ConfigError(f"time_budget is {self.time_budget_s:g} s; allowed: above 0, such as 30m or 2h")
        if not 0 <= self.soft_targets <= 1:
            raise ConfigError(f"soft_targets is {self.soft_targets}; allowed: a number from 0 to 1")
        if not self.token_weight > 0:
            raise ConfigError(f"token_weight is {self.token_weight}; allowed: above 0")
        if not self.heads_weight >= 0:
            raise ConfigError(f"heads_weight is {self.heads_weight}; allowed: 0 or above")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate is {self.learning_rate}; allowed: above 0")
