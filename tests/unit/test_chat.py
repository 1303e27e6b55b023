"""`foreword chat`: history, commands, Ctrl-C, and input from people and pipes."""

import io
import os
import signal
import subprocess
import sys

import pytest

from foreword.cli.chat.chat_loop import Chat
from foreword.cli.main import main
from foreword.engine.llm import LLM
from foreword.sampling.params import SamplingParams
from tests.support.tiny_chat import CONTEXT_LEN, write_tiny_chat

pytestmark = pytest.mark.usefixtures("without_shape_checks")  # they would be most of the time

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_chat(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(tiny, tmp_path_factory):
    return LLM(tiny, runtime="torch", batch_size=1, cache_dir=tmp_path_factory.mktemp("cache"))


class Script:
    """A reader with its messages; a KeyboardInterrupt among them is pressed, not read."""

    def __init__(self, *messages, is_terminal=True):
        self.messages, self.is_terminal = list(messages), is_terminal

    def read(self):
        if not self.messages:
            return None
        message = self.messages.pop(0)
        if isinstance(message, type):
            raise message
        return message


class Interrupted:
    """An LLM whose next answer is interrupted by `press` after some pieces."""

    def __init__(self, llm, after, press):
        self.llm, self.after, self.press, self.config, self.num_asked = llm, after, press, llm.config, 0

    def stream(self, messages, params):
        self.num_asked += 1
        return self._interrupted(messages, params) if self.num_asked == 1 else self.llm.stream(messages, params)

    def _interrupted(self, messages, params):
        stream = self.llm.stream(messages, params)
        try:
            for number, piece in enumerate(stream):
                if number == self.after:
                    self.press()
                yield piece
        finally:
            stream.close()


def raise_interrupt():
    raise KeyboardInterrupt


def send_signal():
    os.kill(os.getpid(), signal.SIGINT)


def talk(llm, *messages, params=PARAMS, system=None):
    chat = Chat(llm, params, Script(*messages), system)
    chat.run()
    return chat


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def test_each_question_is_asked_with_the_conversation_so_far(llm, capsys):
    chat = talk(llm, "hello", "  ", "", "more", system="be brief")
    system = {"role": "system", "content": "be brief"}
    first = llm.generate([[system, user("hello")]], PARAMS)[0].text
    second = llm.generate([[system, user("hello"), assistant(first), user("more")]], PARAMS)[0].text
    assert chat.messages == [system, user("hello"), assistant(first), user("more"), assistant(second)]
    captured = capsys.readouterr()
    assert captured.out == f"{first}\n{second}\n"
    assert captured.err.count("12 tokens, ") == 2
    assert "drafter auto, cut off at --max-tokens 12" in captured.err


def test_commands(llm, capsys):
    chat = talk(llm, "/undo", "hello", "more", "/undo", "/what", "/help", "/clear", "again", "/exit", "never asked")
    assert [m["content"] for m in chat.messages if m["role"] == "user"] == ["again"]
    err = capsys.readouterr().err
    for text in ("there is nothing to take back", "(taken back: more)", "unknown command /what", "/clear  ", "(a new"):
        assert text in err


def test_a_path_or_a_space_makes_a_slash_a_question(llm):
    chat = talk(llm, "/usr/bin is what?", " /exit")
    assert [m["content"] for m in chat.messages[::2]] == ["/usr/bin is what?", " /exit"]


@pytest.mark.parametrize("press", [raise_interrupt, send_signal])
def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(llm, capsys, press):
    handler, params = signal.getsignal(signal.SIGINT), SamplingParams(max_tokens=40, temperature=1.0, seed=1)
    whole = llm.generate([[user("hello")]], params)[0].text
    chat = talk(Interrupted(llm, 2, press), "hello", "more", params=params)
    said = chat.messages[1]["content"]
    assert said
    assert said != whole
    assert whole.startswith(said)
    captured = capsys.readouterr()
    assert captured.out.startswith(said + "\n"), "what is kept is what was seen"
    assert "stopped; the text so far stays in the conversation" in captured.err
    after = llm.generate([[user("hello"), assistant(said), user("more")]], params)[0].text
    assert chat.messages[2:] == [user("more"), assistant(after)]
    assert signal.getsignal(signal.SIGINT) is handler
    assert not llm.engine.running


@pytest.mark.parametrize("press", [raise_interrupt, send_signal])
def test_ctrl_c_before_the_answer_takes_the_question_back(llm, capsys, press):
    chat = talk(Interrupted(llm, 0, press), "hello", "more")
    assert [m["content"] for m in chat.messages[::2]] == ["more"]
    assert "stopped before the answer began: the question is taken back" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_ends_nothing(llm, capsys):
    chat = talk(llm, KeyboardInterrupt, "hello")
    assert len(chat.messages) == 2
    assert "Ctrl-D or /exit ends the chat" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):  # from a pipe there is no prompt to return to
        Chat(llm, PARAMS, Script(KeyboardInterrupt, is_terminal=False)).run()


def test_a_question_too_long_says_what_to_do_and_the_chat_goes_on(llm, capsys):
    chat = talk(llm, "hello", "x" * CONTEXT_LEN, "more")
    assert [m["content"] for m in chat.messages[::2]] == ["hello", "more"]
    err = capsys.readouterr().err
    assert f"the model's context holds {CONTEXT_LEN}" in err
    assert "/clear begins a new conversation, /undo takes back" in err
    talk(llm, "x" * CONTEXT_LEN)
    assert "/clear" not in capsys.readouterr().err, "there is nothing to clear"


def test_an_answer_that_fills_the_context_says_so(llm, capsys):
    talk(llm, "x" * (CONTEXT_LEN - 40), params=SamplingParams(max_tokens=CONTEXT_LEN, ignore_eos=True))
    assert "the context is full: /clear begins a new conversation" in capsys.readouterr().err


def test_a_fault_is_one_line_and_the_conversation_stays(llm, capsys):
    def fail():
        raise ValueError("no power")

    chat = talk(Interrupted(llm, 2, fail), "hello", "more")
    assert [m["content"] for m in chat.messages[::2]] == ["more"]
    err = capsys.readouterr().err
    assert "error: ValueError('no power') at " in err
    assert "Traceback" not in err


def test_a_sampled_chat_reports_its_seed(llm, capsys):
    talk(llm, "hello", params=SamplingParams(max_tokens=4, temperature=0.9, seed=42))
    assert "seed 42" in capsys.readouterr().err


# --- the command


@pytest.fixture
def piped(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))

    def piped(text, *options):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        code = main(["chat", "--model", str(tiny), "--runtime", "torch", "--max-tokens", "8", *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return piped


def test_lines_from_a_pipe_are_turns(piped, llm):
    code, out, err = piped("hello\n\ntwo \\\nlines\n/undo\n")
    params = SamplingParams(max_tokens=8)
    first = llm.generate([[user("hello")]], params)[0].text
    second = llm.generate([[user("hello"), assistant(first), user("two \nlines")]], params)[0].text
    assert (code, out) == (0, f"{first}\n{second}\n")
    assert "(taken back: two )" in err
    assert "/help for help" not in err, "nobody is there to read it"


def test_an_empty_pipe_is_an_empty_chat(piped):
    assert piped("") == (0, "", "")


MISTAKES = {
    "max tokens": (["--max-tokens", "0"], "--max-tokens is 0"),
    "temperature": (["--temperature", "-1"], "temperature is -1"),
    "drafter": (["--drafter", "ngrm"], "did you mean 'ngram'"),
    "config": (["--speculative-config", "{"], "--speculative-config is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(piped, name):
    options, expected = MISTAKES[name]
    code, out, err = piped("hello\n", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_a_model_without_a_chat_template_is_refused(piped, monkeypatch):
    monkeypatch.setattr("foreword.checkpoint.tokenizer.Tokenizer.has_chat_template", False)
    code, out, err = piped("hello\n")
    assert (code, out) == (2, "")
    assert "has no chat template, so it cannot chat; 'foreword generate --raw'" in err


# --- a terminal

READ_ALL = """
from foreword.cli.chat.typed_messages import MessageReader
reader = MessageReader()
while (message := reader.read()) is not None:
    print("got", repr(message), flush=True)
print("over", flush=True)
"""


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self):
        import pty

        self.master, slave = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "INPUTRC": os.devnull}
        command = [sys.executable, "-c", READ_ALL]
        self.output = ""  # not taken yet
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)

    def read_until(self, text):
        """Take output up to the end of a text; fails after two minutes."""
        import select

        while text not in self.output:
            assert select.select([self.master], [], [], 120)[0], f"no {text!r} in {self.output!r}"
            self.output += os.read(self.master, 4096).decode()
        self.output = self.output.partition(text)[2]

    def type(self, text):
        os.write(self.master, text.encode())

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal():
    pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    pytest.importorskip("readline", reason="this Python has no readline")
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_at_a_terminal_pasted_lines_are_one_message(terminal):
    for typed, message in (
        ("hello\r", "'hello'"),
        ("\x1b[200~def f():\n    return 1\x1b[201~\r", r"'def f():\n    return 1'"),  # as a terminal hands over a paste
        ("first line\rsecond line\r", r"'first line\nsecond line'"),  # at once: from one without bracketed paste
        ("one \\\rtwo\r", r"'one \ntwo'"),
        ("\x1b[A\x1b[Dx\r", "'twxo'"),  # the last line once more, edited
    ):
        terminal.read_until("> ")
        terminal.type(typed)
        terminal.read_until(f"got {message}")
    terminal.read_until("> ")
    terminal.type("\x04")
    terminal.read_until("over")
    assert terminal.process.wait(timeout=60) == 0
