"""Makes one page of its parts: `index.html` with the styles and scripts in it, and the policy that allows nothing else.

Scripts are ES modules in files of their own. In the page each becomes a function that returns what it exports:

    import { el } from "./dom.js";          const { el } = modules["dom.js"];
    export function f() {}                  function f() {}  ...  return { f };
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:default )?((?:async )?(?:function\*?|class|const|let) (\w+))", re.MULTILINE)
_STYLE_LINK = '<link rel="stylesheet" href="page.css">'
_SCRIPT_LINK = '<script type="module" src="main.js"></script>'


@dataclass(frozen=True)
class Page:
    """What is sent."""

    html: str
    policy: str  # for the header Content-Security-Policy


@cache
def page() -> Page:
    """The page, made once."""
    script, style = _bundled("main.js"), _read("page.css")
    html = _read("index.html")
    for link, tag in ((_STYLE_LINK, f"<style>{style}</style>"), (_SCRIPT_LINK, f"<script>{script}</script>")):
        before, after = html.split(link)
        html = before + tag + after
    return Page(html, _policy(script, style))


def _read(name: str) -> str:
    return (files(__package__ or "") / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Only the script and the styles of the page itself run, and it talks to the server that it came from alone."""
    rules = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _bundled(entry: str) -> str:
    """One script of a module and all that it imports, each after those that it needs."""
    modules: dict[str, str] = {}
    _add(entry, modules)
    body = "\n".join(f'modules["{name}"] = (() => {{\n{source}}})();' for name, source in modules.items())
    return f'"use strict";\nconst modules = {{}};\n{body}\n'


def _add(name: str, modules: dict[str, str]) -> None:
    source = _read(name)
    for _, needed in _IMPORT.findall(source):
        if needed not in modules:
            _add(needed, modules)
    exported = [exported for _, exported in _EXPORT.findall(source)]
    source = _IMPORT.sub(r'const {\1} = modules["\2"];', source)
    source = _EXPORT.sub(r"\1", source)
    modules[name] = f"{source}return {{ {', '.join(exported)} }};\n"
