"""Models on disk: Hugging Face folders and hub ids, GGUF files, tokenizers, the default model."""

from foreword.checkpoint.opened import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
