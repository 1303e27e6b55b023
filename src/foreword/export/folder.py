"""Writing an export: weights, configuration, tokenizer where one is needed, and a card that says how it is used."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.errors import ConfigError
from foreword.export.check import Guesses, check_export
from foreword.export.commands import TARGET, VERSIONS, command
from foreword.export.formats import layout_for
from foreword.export.gguf_draft import FILE, write_gguf
from foreword.export.layout import Layout
from foreword.export.source import DrafterSource
from foreword.files import write_whole
from foreword.target.load_model import LoadedModel


def export(source: DrafterSource, engine: str, out: Path, model: LoadedModel, checks: bool = True) -> str:
    """Write a drafter for an engine; the folder appears once it has been read back and found right.

    Args:
        source: the drafter.
        engine: one of `ENGINES`.
        out: a folder that does not exist, or is empty.
        model: the target, to try it with.
        checks: whether to draft with it before it is called done.

    Returns:
        The command that starts the engine with it.

    Raises:
        ConfigError: the engine cannot take it, or `out` is in use; before anything is written.
        CheckpointError: what was written does not draft as it should.
    """
    layout = layout_for(source, engine)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already; name a folder that does not exist, or an empty one")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
        made = Path(place) / out.name
        made.mkdir()
        written = write_layout(made, layout, source)
        found = check_export(model, source, layout, written) if checks else None
        line = command(engine, layout.method, target_name(source, engine), str(out))
        write_whole(made / "README.md", _card(source, layout, line, found))
        if out.is_dir():
            out.rmdir()
        shutil.move(made, out)
    return line


def target_name(source: DrafterSource, engine: str) -> str:
    """The target as the engine is told of it."""
    target = source.target
    if engine == "llama.cpp":
        return str(target.path)
    return target.source if target.path.is_dir() else TARGET


def write_layout(folder: Path, layout: Layout, source: DrafterSource) -> Path:
    """The files; what is to be loaded from them."""
    from safetensors.torch import save_file

    if layout.engine == "llama.cpp":
        write_gguf(folder / FILE, layout, source.target.path)
        return folder / FILE
    tensors = {name: tensor.contiguous() for name, tensor in layout.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(dict(layout.config), indent=2) + "\n")
    if layout.needs_tokenizer:
        _write_tokenizer(folder, source.target.tokenizer)
    return folder


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    write_whole(folder / "tokenizer.json", tokenizer.backend.to_str(pretty=True))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_whole(folder / "tokenizer_config.json", json.dumps({**config, **tokenizer.special_tokens}, indent=2) + "\n")
    if tokenizer.chat_template is not None:
        write_whole(folder / "chat_template.jinja", tokenizer.chat_template)


def _card(source: DrafterSource, layout: Layout, line: str, found: tuple[Guesses, Guesses] | None) -> str:
    name = source.card.get("target", source.target.source)
    parts = [
        f"# {source.kind} drafter for {name}, written for {layout.engine}",
        "",
        f"Target: {source.target.source}, SHA-256 of its weights `{source.target.fingerprint}`.",
        f"Version: {VERSIONS[layout.engine]}.",
        "",
        f"```\n{line}\n```",
        "",
        *(
            [f"- {TARGET} is the model as a Hugging Face folder or hub id: the drafter was made for a GGUF of it."]
            if TARGET in line
            else []
        ),
        *[f"- {note}" for note in layout.notes],
    ]
    if found is not None:
        before, after = found
        parts += [
            "",
            f"Read back by foreword: {after.share:.1%} of the proposed tokens accepted, {before.share:.1%} before "
            f"the export ({after.drafted} tokens proposed in chains of 3).",
        ]
    return "\n".join(parts) + "\n"
