"""`foreword profile` keeps its contract and measures something real."""

import json

import pytest

from foreword.bench.pass_cost import PassCost, measure_pass_cost, measure_prefill
from foreword.bench.plot import pass_cost_svg
from foreword.checkpoint.cache import cache_folder
from foreword.checkpoint.default_model import default_model_path
from foreword.cli.main import main
from tests.support.toy_decoder import ToyDecoder


@pytest.mark.parametrize(("widths", "message"), [("", "--widths is ''"), ("1,x", "1,x"), ("0,4", "1 or above")])
def test_wrong_widths_are_a_users_mistake(widths, message, capsys):
    assert main(["profile", "--widths", widths]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("place", [".", "missing/x.svg"])
def test_a_plot_that_cannot_be_written_is_refused_before_measuring(place, tmp_path, capsys):
    place = tmp_path / place
    assert main(["profile", "--model", "no-such-model.gguf", "--plot", str(place)]) == 2
    assert f"--plot is {place}; allowed: a file in a folder that exists" in capsys.readouterr().err


def test_every_width_is_measured_and_nothing_is_committed():
    decoder = ToyDecoder()
    cost = measure_pass_cost(decoder, [1, 4], 32, repeats=2)
    assert set(cost.ms_by_width) == {1, 4}
    assert all(ms > 0 for ms in cost.ms_by_width.values())
    assert decoder.num_passes == 1 + 2 * (2 + 3)  # the context, then two widths: two repeats and three to warm up
    assert measure_prefill(decoder, 40, chunk=16, repeats=1) > 0


def test_the_plot_is_a_picture_with_the_floor():
    svg = pass_cost_svg(PassCost({1: 3.0, 8: 4.5}, 2.9, 256, 40.0, 116_000_000), "a < b")
    assert svg.startswith("<svg")
    assert "a &lt; b" in svg
    assert "memory floor 2.9 ms" in svg


def test_json_on_the_default_model(capsys, tmp_path):
    if not default_model_path(cache_folder()).exists():
        pytest.skip("the default model is not in the cache")
    picture = tmp_path / "cost.svg"
    assert (
        main(["profile", "--widths", "1,2", "--context", "8", "--repeats", "2", "--plot", str(picture), "--json"]) == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert {"widths", "floor_ms", "runtime", "dtype"} <= set(data)
    assert data["widths"]["2"]["ms"] > 0
    assert data["floor_ms"] > 0
    assert picture.read_text().startswith("<svg")
