"""A tiny random model as a GGUF file with a tokenizer and a chat template: everything the command line needs."""

from pathlib import Path

from tests.support.tiny_files import byte_level_vocabulary, write_gguf
from tests.support.tiny_models import TinyWeights, tiny_spec

CONTEXT_LEN = 1024


def write_tiny_chat(folder: Path, seed: int = 3) -> Path:
    """The model's file."""
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 12,
    }
    spec = tiny_spec("llama", vocab_size=len(byte_level_vocabulary()), context_len=CONTEXT_LEN, **sizes)
    folder.mkdir(parents=True, exist_ok=True)
    return write_gguf(folder / "tiny.gguf", TinyWeights(spec, seed), tokenizer=True)
