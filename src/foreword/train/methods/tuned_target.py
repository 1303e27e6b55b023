"""The target with adapters: what Medusa-2 tunes, read over batches of answers in transformers [medusa24, lora21].

Every linear map of the layers gets a low-rank adapter, which begins as zero; embedding, norms and head stay as they are. With
the adapters switched off it is the original again, so one set of weights serves as model and teacher. It runs on the GPU
where there is one, and hands its states over on the CPU.
"""

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from foreword.checkpoint.name_map import HF_NAMES, expected_shapes, file_name
from foreword.errors import ConfigError
from foreword.train.data.batches import Batch
from foreword.train.methods.method import TargetTables
from foreword.train.out.layer_files import layer_config

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_ADAPTER, _PREFIX = "default", "model."
_ALPHA = 16  # what a rank-r adapter adds is scaled by alpha / r


class TunedTarget:
    """The layers of a target, frozen, and the adapters in them.

    Args:
        target: the original; its weights have to be at hand.
        rank: of the adapters.
        seed: of their first weights.
        dtype: of the frozen weights; adapters are float32.
    """

    def __init__(self, target: TargetTables, rank: int, seed: int, dtype: torch.dtype) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype, self._names = dtype, _module_names(target)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._peft = _adapted(_layers_of(target, dtype), rank).to(self.device)
        self._model = self._peft.base_model.model

    def adapters(self) -> dict[str, nn.Parameter]:
        """What is trained, by names without full stops."""
        named = self._peft.named_parameters()
        return {name.replace(".", "/"): parameter for name, parameter in named if parameter.requires_grad}

    def hidden(self, batch: Batch, *, is_tuned: bool) -> Tensor:
        """The final norm's output at the answers' columns (B, A, H), float32; of the original unless `is_tuned`."""
        columns = torch.arange(batch.num_columns)
        # A column sees the answer's own columns up to itself; padding sees itself alone, and nobody sees padding.
        own = columns >= batch.starts[:, None]  # (B, T)
        seen = (columns <= columns[:, None]) & own[:, None] | torch.eye(len(columns), dtype=torch.bool)
        positions = (columns - batch.starts[:, None]).clamp_min(0)
        with self._original() if not is_tuned else contextlib.nullcontext(), self._autocast():
            out = self._model(
                input_ids=batch.token_ids.to(self.device),
                attention_mask=seen[:, None].to(self.device),
                position_ids=positions.to(self.device),
                use_cache=False,
            )
        return out.last_hidden_state[:, -batch.answer_columns :].to("cpu", torch.float32)

    def delta(self, name: str) -> Tensor | None:
        """What the adapter adds to the tensor of this canonical name, float32; None where there is no adapter."""
        if name not in self._names or not self._names[name].endswith(ADAPTED):
            return None
        layer: Any = self._model.get_submodule(self._names[name])
        with torch.no_grad():
            return layer.get_delta_weight(_ADAPTER).to("cpu", torch.float32)

    @contextlib.contextmanager
    def _original(self) -> Iterator[None]:
        with self._peft.disable_adapter(), torch.no_grad():
            yield

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16)


def _module_names(target: TargetTables) -> dict[str, str]:
    """Canonical name of a matrix -> the module that holds it in transformers."""
    found = {}
    for name in expected_shapes(target.spec):
        if name.startswith("layers.") and name.endswith(".weight"):
            found[name] = file_name(HF_NAMES, name).removeprefix(_PREFIX).removesuffix(".weight")
    return found


def check_tuning(target: TargetTables) -> None:
    """`ConfigError` where the target has no files, or peft is missing."""
    if target.weights is None:
        raise ConfigError("Medusa-2 tunes the target's own weights; load the target from its folder or file")
    if importlib.util.find_spec("peft") is None:
        raise ConfigError("Medusa-2 needs peft, which is not installed; install it: pip install 'peft>=0.17'")


def _layers_of(target: TargetTables, dtype: torch.dtype) -> Any:
    """The model without its head, as transformers builds it, with the target's weights."""
    from transformers import AutoConfig, AutoModel

    check_tuning(target)
    assert target.weights is not None
    spec = target.spec
    config = AutoConfig.for_model(spec.family, **layer_config(spec, spec.num_layers))
    model = AutoModel.from_config(config, dtype=dtype)
    state = {}
    for name in expected_shapes(spec):
        if name != "head.weight":
            state[file_name(HF_NAMES, name).removeprefix(_PREFIX)] = target.weights.tensor(name).to(dtype)
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


def _adapted(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    # No dropout: a run that goes on after a break has to draw what it would have drawn without it.
    config = LoraConfig(r=rank, lora_alpha=_ALPHA, target_modules=list(ADAPTED), lora_dropout=0.0)
    with warnings.catch_warnings():  # of transformers to peft, about a name that neither the user nor foreword gave
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return get_peft_model(model, config)
