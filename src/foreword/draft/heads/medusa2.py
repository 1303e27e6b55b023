"""Medusa-2: heads for the model that was tuned together with them, which is another model than its original [medusa24].

    OUT/config.json model.safetensors ...    the tuned model:  --model OUT --drafter medusa2
    OUT/medusa/config.json ...               its heads

With the original they are refused: its hidden states are not those that the heads were trained on. What the tuned model
says is compared with the tuned model without a drafter.
"""

from pathlib import Path

from foreword.checkpoint.drafter_folder import open_tensors
from foreword.checkpoint.opened import Checkpoint
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.heads.medusa import MedusaDrafter, MedusaOptions
from foreword.draft.heads.medusa_files import FILES, MedusaFiles, open_heads
from foreword.draft.heads.medusa_network import load_heads
from foreword.draft.model.draft_vocab import drafted_ids
from foreword.errors import CheckpointError, ConfigError
from foreword.target.target import Target

METHOD, FOLDER = "medusa2", "medusa"
_WITHIN = "medusa_head."  # heads among a model's own tensors, as Medusa's authors save the two


def make(settings: DrafterSettings, target: Target) -> MedusaDrafter:
    """The heads of the tuned model, on its runtime."""
    beside = target.model
    theirs = None if beside is None else beside.checkpoint
    if beside is None or not isinstance(theirs, Checkpoint):
        raise ConfigError(
            "drafter medusa2 goes with the model that was tuned with it, told by its files; load that model from its folder"
        )
    path = heads_folder(settings.path or theirs.path)
    if settings.path is None and path is None:
        raise ConfigError(
            f"{theirs.source} was not tuned with Medusa-2: it has no heads in a folder {FOLDER!r} of its own. Make a tuned "
            f"model with 'foreword train medusa2 --model {theirs.source} --out OUT' and use it: --model OUT --drafter medusa2"
        )
    files = open_heads(path or str(settings.path))
    check_tuned(files, theirs)
    ids = drafted_ids(settings.options.draft_vocab, beside)
    heads = load_heads(files, target.spec, theirs, beside.runtime, ids)
    return MedusaDrafter(heads, settings.options, settings.draft_mode)


def heads_folder(path: str | Path) -> Path | None:
    """Where the heads of a tuned model lie: in a folder of its own, or among its tensors; None where it has none."""
    folder = Path(path).expanduser()
    if (folder / FOLDER / "config.json").is_file():
        return folder / FOLDER
    try:
        names = open_tensors(folder, FILES)[1] if (folder / "config.json").is_file() else ()
    except CheckpointError:
        return None
    return folder if any(name.startswith(_WITHIN) for name in names) else None


def check_tuned(files: MedusaFiles, theirs: Checkpoint) -> None:
    """`ConfigError` with the reason where a target is not the one that these heads were tuned with."""
    if files.layout == "full model" and files.path.parent.resolve() == theirs.path.resolve():
        return
    if files.card.get("method") != METHOD:
        raise ConfigError(
            f"{files.path} does not say which model was tuned with these heads; give that model's folder as --model where "
            f"the heads are among its tensors, or draft with them as they are: medusa={files.path.parent}"
        )
    if files.card.get("target_fingerprint") != theirs.fingerprint:
        home = files.path.parent.parent
        raise ConfigError(
            f"the heads in {files.path.parent} were tuned together with another model than {theirs.source}: the one in {home}, "
            f"which was made from {files.card.get('base')} and has output of its own; use it: --model {home} --drafter medusa2"
        )


MEDUSA2 = DrafterType(
    name=METHOD,
    summary="Medusa-2: the same, with the model fine-tuned together with its heads: "
    "a different model with different output, `--model TUNED --drafter medusa2`",
    needs="a tuned target",
    fits="a different model: different output",
    make=make,
    options=MedusaOptions,
    takes="PATH",
    runs_model=True,
    reads_states=True,
    in_tune=False,
)
