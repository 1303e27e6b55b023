"""Clients that this project does not install, each in a program of its own. docs/clients.md says how to run them."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.tool_serving import tool_server

CLIENTS = Path(__file__).parent / "clients"
PYTHON = os.environ.get("FOREWORD_CLIENTS_PYTHON")  # an interpreter that has them
NODE_MODULES = os.environ.get("FOREWORD_CLIENTS_NODE_MODULES")  # a folder that has `openai`
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with tool_server(tmp_path_factory.mktemp("elsewhere"), context_len=8192) as server:
        yield server


def run(command, url, **env):
    done = subprocess.run(
        [*command, url], capture_output=True, text=True, timeout=200, env={**os.environ, **env}, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def python_client(name, url):
    if PYTHON is None:
        pytest.skip("FOREWORD_CLIENTS_PYTHON names no interpreter with the clients")
    package = {"litellm_client": "litellm", "pydantic_ai_client": "pydantic_ai", "smolagents_client": "smolagents"}[
        name
    ]
    if subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no {package}")
    return run([PYTHON, str(CLIENTS / f"{name}.py")], url)


def test_openai_for_node(served):
    if NODE_MODULES is None or shutil.which("node") is None:
        pytest.skip("no node, or FOREWORD_CLIENTS_NODE_MODULES names no folder with the openai package")
    with served.saying("Not today."):
        found = run(["node", str(CLIENTS / "openai_node.cjs")], served.url, NODE_PATH=NODE_MODULES)
    texts = [found[name] for name in ("whole", "streamed", "response", "streamedResponse")]
    assert texts == ["Not today."] * 4
    assert found["models"] == ["tiny"]
    assert found["call"]["city"] in ("Oslo", "Rome")
    assert found["streamedCall"] == found["call"]
    assert found["refused"] == 400


def test_litellm(served):
    with served.saying("Not today."):
        found = python_client("litellm_client", served.url)
    assert [found[name] for name in ("whole", "streamed", "response")] == ["Not today."] * 3
    assert found["call"]["city"] in ("Oslo", "Rome")
    assert found["streamedCall"] == found["call"]
    assert found["refused"] == 404


def test_pydantic_ai(served):
    with served.saying(CALL, "No rain.", CALL, "No rain."):
        found = python_client("pydantic_ai_client", served.url)
    assert found["chat"] == found["responses"] == {"asked": ["Oslo"], "answer": "No rain.", "requests": 2}


def test_smolagents(served, monkeypatch):
    monkeypatch.setattr(served.llm, "overrides_grammars", True)  # it asks for calls by tool_choice "required"
    final = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "No rain."}}\n</tool_call>'
    with served.saying(CALL, final):
        found = python_client("smolagents_client", served.url)
    assert found == {"answer": "No rain.", "asked": ["Oslo"]}
