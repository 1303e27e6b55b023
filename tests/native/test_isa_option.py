"""`isa`: the path that is measured is the one that was named."""

import pytest

from foreword.cli.main import main
from foreword.errors import ConfigError, UnknownNameError
from foreword.runtime.select import choose_runtime, make_runtime
from tests.native.test_invariance import isas


@pytest.mark.parametrize("isa", isas())
def test_the_named_path_is_taken(isa: str) -> None:
    choice = choose_runtime("native", isa=isa)
    assert choice.isa == isa
    assert make_runtime(choice, threads=1).isa == isa


def test_auto_is_the_fastest_by_its_name() -> None:
    assert choose_runtime("native").isa == isas()[0]
    assert choose_runtime("torch").isa == ""


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="isa"):
        choose_runtime("native", isa="z80")
    with pytest.raises(ConfigError, match="isa is portable, but the torch runtime"):
        choose_runtime("torch", isa="portable")


@pytest.mark.parametrize("command", ["profile", "tune", "bench"])
def test_commands_take_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--model", "no-such-model.gguf", "--runtime", "native", "--isa", "z80"]) == 2
    assert "z80" in capsys.readouterr().err
    assert main([command, "--model", "no-such-model.gguf", "--runtime", "native", "--isa", "portable"]) == 2
    assert "no-such-model.gguf" in capsys.readouterr().err
