"""`foreword serve` as a process: it says where it is, answers, drains, and ends with a code that says how."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx2
import pytest

from foreword.cli.main import main

COMPLETIONS = "/v1/completions"
BODY = {"prompt": [1, 2, 3], "max_tokens": 8, "return_token_ids": True}


@contextlib.contextmanager
def serving(files, *options: str, prelude: str = ""):
    """The process and its address, once it is ready."""
    command = f"{prelude}\nimport sys\nfrom foreword.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    model = [
        "--model",
        str(files.target),
        "--drafter",
        "ngram",
        "--runtime",
        "torch",
        "--dtype",
        "float32",
        "--threads",
        "1",
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", command, "serve", *model, "--port", "0", *options],
        stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"serving at (\S+)/v1: (.*)", line):
                break
        else:
            raise AssertionError("".join(said))
        rest = threading.Thread(target=lambda: said.extend(process.stderr))
        rest.start()
        yield process, found.group(1), said
        process.wait(60)
        rest.join(30)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_it_says_where_it_is_answers_and_drains_when_told_to_end(files):
    with serving(files, "--served-model-name", "tiny") as (process, address, said):
        assert "tiny (" in "".join(said)
        assert "drafter ngram" in "".join(said)
        with httpx2.Client(base_url=address, timeout=60) as client:
            first = client.post(COMPLETIONS, json=BODY | {"model": "tiny"}).json()
            assert len(first["choices"][0]["token_ids"]) == 8
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
            found = []
            long = BODY | {"max_tokens": 60, "ignore_eos": True}
            asked = threading.Thread(
                target=lambda: found.append(httpx2.post(address + COMPLETIONS, json=long, timeout=60))
            )
            asked.start()
            while client.get("/v1/status").json()["engine"]["generated_tokens"] < 9:
                pass
            process.send_signal(signal.SIGTERM)
            asked.join(60)
    assert len(found[0].json()["choices"][0]["token_ids"]) == 60
    assert process.returncode in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
    assert "Traceback" not in "".join(said)
    assert "curl " in "".join(said)


def test_it_ends_with_its_engine(files):
    """The loop itself breaks: /health says so for as long as there is anyone to ask, and the exit code is 1."""
    prelude = """
from foreword.engine.loop import EngineLoop
step = EngineLoop._step
def broken(self):
    if self._open:
        raise SystemError("broken on purpose")
    step(self)
EngineLoop._step = broken
"""
    with serving(files, prelude=prelude) as (process, address, said):
        assert httpx2.post(address + COMPLETIONS, json=BODY, timeout=60).status_code == 500
        with contextlib.suppress(httpx2.TransportError):  # it may have ended already
            assert httpx2.get(address + "/health", timeout=60).status_code == 503
    assert process.returncode == 1
    assert "broken on purpose" in "".join(said)


@pytest.mark.parametrize(
    ("first", "second", "stream"),
    [
        (signal.SIGTERM, signal.SIGTERM, False),
        (signal.SIGTERM, signal.SIGINT, True),
        (signal.SIGINT, signal.SIGINT, False),
    ],
)
def test_a_second_signal_ends_it_at_once(files, first, second, stream):
    """In the middle of an answer that would never end."""
    prelude = """
import time
from foreword.engine.loop import EngineLoop
step = EngineLoop._step
def endless(self):
    step(self)
    if self._open:
        time.sleep(600)
EngineLoop._step = endless
"""

    def ask():
        with contextlib.suppress(httpx2.TransportError):
            httpx2.post(address + COMPLETIONS, json=BODY | {"stream": stream}, timeout=60)

    with serving(files, prelude=prelude) as (process, address, said):
        asked = threading.Thread(target=ask)
        asked.start()
        while not httpx2.get(address + "/v1/status").json()["engine"]["num_running"]:
            time.sleep(0.01)
        process.send_signal(first)
        with contextlib.suppress(httpx2.TransportError):
            while True:  # until it listens no more: the first has been noticed
                httpx2.get(address + "/health")
        assert process.poll() is None
        process.send_signal(second)
    asked.join()
    assert process.returncode == 128 + second
    assert "1 connection was cut" in said[-1]
    assert "Traceback" not in "".join(said)


def test_a_key_from_a_file(files, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    with serving(files, "--api-key-file", str(tmp_path / "key")) as (process, address, said):
        assert httpx2.post(address + COMPLETIONS, json=BODY, timeout=60).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx2.post(address + COMPLETIONS, json=BODY, headers=headers, timeout=60).status_code == 200
        process.send_signal(signal.SIGINT)
    assert "secret" not in "".join(said)


def test_a_prefix_survives_a_server_that_is_killed(files, tmp_path):
    folder = tmp_path / "prompts"
    body = BODY | {"prompt": [(i * i + i // 5) % 30 for i in range(100)]}
    answers = []
    for _ in range(2):
        with serving(files, "--prompt-cache", str(folder)) as (process, address, _):
            answers.append(httpx2.post(address + COMPLETIONS, json=body, timeout=60).json())
            while not list(folder.glob("*.rows")):
                time.sleep(0.01)
            metrics = httpx2.get(address + "/metrics").text
            process.kill()
    cold, warm = (answer["usage"] for answer in answers)
    assert (cold["prompt_tokens_details"], warm["prompt_tokens_details"]) == (
        {"cached_tokens": 0},
        {"cached_tokens": 64},
    )
    assert answers[0]["choices"][0]["token_ids"] == answers[1]["choices"][0]["token_ids"]
    assert re.search(r"^foreword:prompt_cache_tokens_total\{.*} 64\.0$", metrics, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--served-model-name", ""], "served-model-name is empty"),
        (["--served-model-name", "  "], "served-model-name is empty"),
        (["--prompt-cache", __file__], "is no folder"),
        (["--kv-cache-bytes", "1"], "kv_cache_bytes is 1; allowed: "),
        (["--prompt-cache", "x", "--no-prefix-cache"], "prefix_cache is off"),
        (["--prompt-cache", "x", "--prompt-cache-bytes", "0"], "prompt_cache_bytes is 0"),
        (["--host", "0.0.0.0"], "can be reached from other machines"),
        (["--port", "70000"], "port is 70000"),
        (["--request-timeout", "-1"], "request_timeout_s is -1"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--api-key-file", "no/such/file"], "cannot be read"),
        (["--drafter", "no_such"], "unknown drafter"),
    ],
)
def test_mistakes_are_one_line(files, options, message, capsys):
    assert main(["serve", "--model", str(files.target), *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_port_in_use_is_one_line(files, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        options = ["--model", str(files.target), "--runtime", "torch", "--dtype", "float32", "--port", port]
        assert main(["serve", *options]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err
