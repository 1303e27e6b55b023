"""The command's entry: what happens before the command line is there."""

import sys
from types import ModuleType

from foreword.__main__ import main


class Interrupted(ModuleType):
    """Ctrl-C while it is imported."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


def test_ctrl_c_during_the_imports_is_no_traceback(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "foreword.cli.main", Interrupted("foreword.cli.main"))
    assert main() == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_otherwise_it_is_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["foreword", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("foreword ")
