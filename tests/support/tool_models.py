"""Tiny random models whose tokenizers and chat templates call tools the way the families do."""

import json
from pathlib import Path

import tokenizers

from foreword.target.load_model import LoadedModel, load_model
from tests.support.tiny_files import byte_chars, write_folder
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.support.toy_tokenizers import byte_level_backend

END = "<end>"
SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>")
WORDS = ('{"', '":', '", "', "name", "arguments", "tool")
_TURN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
_END = "\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

# What each family's template does with tools, in short.
TEMPLATES = {
    "hermes": "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    + _TURN
    + "{% for c in m.tool_calls or [] %}\n<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}" + _END,
    "llama3": "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{# ipython #}" + _TURN
    + "{% for c in m.tool_calls or [] %}{\"name\": \"{{ c.function.name }}\", \"parameters\": "
    "{{ c.function.arguments | tojson }}}{% endfor %}" + _END,
    "mistral": "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + _TURN
    + "{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids') }}"
    "{% endif %}{{ c.function | tojson }}{% endfor %}]{% endif %}" + _END,
    "mistral-named": "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + _TURN
    + "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"
    + _END,
    "plain": _TURN + _END,
}  # fmt: skip


def write_tool_model(folder: Path, template: str, context_len: int = 2048) -> Path:
    """A model's folder; `template` is one of `TEMPLATES` by name."""
    backend = byte_level_backend(byte_chars(), WORDS, END)
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in SPECIAL])
    spec = tiny_spec("llama", vocab_size=backend.get_vocab_size(), context_len=context_len)
    write_folder(folder, TinyWeights(spec, seed=3), eos_token_id=backend.token_to_id(END))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATES[template]}))
    return folder


def load_tool_model(folder: Path, template: str, context_len: int = 2048) -> LoadedModel:
    """The same, loaded."""
    path = write_tool_model(folder, template, context_len)
    return load_model(path, runtime="torch", dtype="float32", device="cpu", threads=1)
