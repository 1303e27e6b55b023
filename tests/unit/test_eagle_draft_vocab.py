"""A list of frequent tokens trims the heads of EAGLE-1, EAGLE-2 and Medusa; the words stay those of plain decoding [frspec25]."""

import json
import pickle

import pytest
import torch

from foreword.cli.main import main
from foreword.draft.draft_config import DraftConfig, parse_draft_config
from foreword.draft.heads.eagle_files import EagleFiles
from foreword.draft.heads.eagle_network import load_network
from foreword.draft.make_drafter import make_drafter
from foreword.draft.model.draft_vocab import TrimmedHead, read_draft_vocab
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.runtime.base import Need
from foreword.runtime.select import native_problem
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.drafters import Checked
from tests.support.tiny_llm import VOCAB_SIZE
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.support.toy_engine import make_engine, run

pytestmark = pytest.mark.usefixtures("without_shape_checks")
LISTED = [9, 4, 17, 2, 30, 9, 11, 25, 7]
PROMPTS = [[5, 17, 3, 12, 8, 1], [1, 2, 3, 1, 2, 3, 1]]


@pytest.fixture(scope="module", params=["torch", "native"])
def model(request, files):
    if request.param == "native" and (problem := native_problem()) is not None:
        pytest.skip(f"native kernels are not available: {problem}")
    return files.load(request.param)


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """As the method's authors publish it."""
    path = tmp_path_factory.mktemp("freq") / "freq_9.pt"
    torch.save(LISTED, path)
    return path


def test_every_form_of_a_list_is_read(tmp_path, listed):
    forms = {"list.pt": LISTED, "tuple.pt": tuple(LISTED), "tensor.pt": torch.tensor(LISTED, dtype=torch.int32)}
    for name, value in forms.items():
        torch.save(value, tmp_path / name)
    (tmp_path / "list.json").write_text(json.dumps(LISTED))
    expected = [2, 4, 7, 9, 11, 17, 25, 30]
    for path in (listed, *(tmp_path / name for name in (*forms, "list.json"))):
        assert read_draft_vocab(path, 31).tolist() == expected
    assert read_draft_vocab(listed, 35, [34, 2, 40, -1]).tolist() == [*expected, 34]


def test_wrong_lists_are_refused_with_the_reason(tmp_path, listed):
    class Runs:
        def __reduce__(self):
            return (print, ("run",))

    def refused(name, message, write, vocab_size=31):
        path = tmp_path / name
        write(path)
        with pytest.raises(ConfigError, match=message):
            read_draft_vocab(path, vocab_size)

    refused("no.pt", "there is no such file", lambda path: None)
    refused("far.json", "names token 30; allowed: 0 to 29, .* another model", lambda p: p.write_text("[1, 30]"), 30)
    refused("low.json", "names token -1; allowed", lambda path: path.write_text("[-1, 3]"))
    refused("none.json", "a list without a token", lambda path: path.write_text("[]"))
    for i, value in enumerate(({"ids": [1]}, [1.5], [True], ["a"], 7, [[1]])):
        refused(f"{i}.json", "something else than a list", lambda path, v=value: path.write_text(json.dumps(v)))
    for i, value in enumerate((torch.ones(3), torch.ones(3, dtype=torch.bool), torch.ones(2, 2, dtype=torch.int64))):
        refused(f"{i}.pt", "something else than a list", lambda path, v=value: torch.save(v, path))
    refused("cut.json", "cannot be read as JSON", lambda path: path.write_text("[1, 2"))
    refused("runs.pt", "does not hold plain values", lambda path: path.write_bytes(pickle.dumps([Runs()], protocol=2)))
    refused("cut.pt", "does not hold plain values", lambda path: path.write_bytes(listed.read_bytes()[:80]))


@pytest.mark.parametrize("junk", [b"", b"hello\n", b".", b"\x80\x02", b"[1, 2, 3]", bytes(range(256))])
def test_junk_in_a_file_is_no_traceback(tmp_path, junk):
    path = tmp_path / "list.pt"
    path.write_bytes(junk)
    with pytest.raises(ConfigError, match="list.pt"):
        read_draft_vocab(path, 100)


@pytest.mark.parametrize(("method", "folder"), [("eagle", "eagle"), ("eagle2", "eagle"), ("medusa", "medusa")])
def test_only_listed_tokens_are_drafted_and_no_word_changes(method, folder, files, listed, model):
    target = Target(model.decoder, model)
    end, special = model.checkpoint.eos_token_ids, model.tokenizer.special_ids
    allowed = {*LISTED, *end, *special}
    assert len(end) > 0
    for options in ({}, {"temperature": 0.9, "seed": 3}, {"repetition_penalty": 1.3}):
        params = [SamplingParams(max_tokens=10, **options)] * len(PROMPTS)
        plain = [request.new_ids for request in run(make_engine(model.decoder), PROMPTS, params)]
        config = DraftConfig(method=method, path=str(getattr(files, folder)), options={"draft_vocab": str(listed)})
        drafter, seen = Checked(make_drafter(config, target)), set()
        inner = drafter.drafter.propose

        def propose(requests, plans, inner=inner, seen=seen):
            trees = inner(requests, plans)
            seen.update(token for tree in trees for token in tree.token_ids[tree.num_known :])
            return trees

        drafter.drafter.propose = propose
        requests = run(make_engine(model.decoder, drafter, num_nodes=6, target=target), PROMPTS, params)
        assert [request.new_ids for request in requests] == plain
        assert seen <= allowed
        assert len(seen) > 3


def test_rows_are_those_of_the_whole_head(files, model):
    """Each kept row says what it said: the network's logits, and those of the trimmed one."""
    theirs, spec = model.checkpoint, model.checkpoint.spec
    ids, logits = torch.tensor([2, 3, 11, 30]), []
    for rows in (None, ids):
        made = load_network(EagleFiles(files.eagle), False, spec, theirs, model.runtime, rows)
        assert made.vocab.ids.tolist() == (list(range(VOCAB_SIZE)) if rows is None else ids.tolist())
        layer = made.reader.decoder
        cache = layer.new_cache()
        batch = pack([DraftTree.chain([3, 4, 5])], [0], [cache.open(8)])
        inputs = torch.linspace(-1, 1, 3 * spec.hidden_size).view(3, -1)
        logits.append(layer.forward(batch, cache, Need(logits=[2]), inputs).logits[0])
    torch.testing.assert_close(logits[1], logits[0][ids], rtol=1e-5, atol=1e-5)


def test_packed_weights_of_another_list_are_another_file():
    weights = TinyWeights(tiny_spec("llama", tied_head=False))
    first, second = (TrimmedHead(weights, torch.tensor(ids)) for ids in ([1, 2, 3], [1, 2, 4]))
    assert len({weights.fingerprint, first.fingerprint, second.fingerprint}) == 3
    assert torch.equal(second.tensor("head.weight"), weights.tensor("head.weight")[[1, 2, 4]])
    assert second.tensor("head.weight") is second.tensor("head.weight")  # taken once
    assert torch.equal(first.tensor("embed.weight"), weights.tensor("embed.weight"))


def test_drafters_with_a_vocabulary_of_their_own_are_refused(files, listed, tmp_path):
    model = files.load()
    target = Target(model.decoder, model)

    def refused(message, method, folder=None):
        with pytest.raises(ConfigError, match=message):
            make_drafter(DraftConfig(method=method, path=folder, options={"draft_vocab": listed}), target)

    nothing = "draft_vocab does nothing for {}; it belongs to eagle2, eagle, medusa, medusa2; leave it out"
    refused(nothing.format("eagle3"), "eagle3", files.eagle3_reduced)
    refused(nothing.format("suffix,eagle3"), f"suffix,eagle3={files.eagle3}")
    refused(nothing.format("ngram"), "ngram")
    refused(nothing.format("draft_model"), "draft_model", files.draft)
    refused("was made for 20 tokens of its own choice", "medusa", files.medusa_reduced)
    reduced = dict(EagleFiles(files.eagle)._stored)
    ids = torch.arange(0, VOCAB_SIZE, 4)
    from tests.support.eagle_heads import save_head

    config = json.loads((files.eagle / "config.json").read_text())
    folder = save_head(tmp_path, config, reduced | {"d2t": ids - torch.arange(len(ids))})
    refused("was made for 10 tokens of its own choice", "eagle2", folder)


def test_in_a_cascade_and_by_sglangs_name(files, listed):
    config = parse_draft_config({"method": f"suffix,eagle2={files.eagle}", "speculative_token_map": str(listed)})
    assert config.members[1].options.draft_vocab == str(listed)
    model = files.load()
    llm, plain = (LLM(model, drafter) for drafter in (config, "none"))
    prompts, params = PROMPTS, SamplingParams(max_tokens=8)
    assert [result.token_ids for result in llm.generate(prompts, params)] == [
        result.token_ids for result in plain.generate(prompts, params)
    ]


def test_inspect_tries_a_list(files, listed, capsys):
    def inspect(path, *options, code=0):
        arguments = [str(path), "--model", str(files.target), "--runtime", "torch", "--draft-vocab", str(listed)]
        assert main(["inspect", *arguments, *options]) == code
        return capsys.readouterr().out

    text = inspect(files.eagle)
    note = f"{listed}: 9 of the target's {VOCAB_SIZE} tokens are drafted, end and special ones included"
    assert note in " ".join(text.split())
    assert '"draft_vocab": ' in text
    assert "tokens per step" in text
    facts = json.loads(inspect(files.medusa, "--json", "--no-measure"))
    assert (facts["fit"]["fits"], facts["fit"]["draft_vocab"]) == (True, str(listed))
    assert inspect(files.eagle3, "--json", code=2) == "", "a list for it is a mistake, and no misfit"
    assert main(["inspect", str(files.eagle), "--model", str(files.target), "--draft-vocab", "missing.json"]) == 2
    assert main(["inspect", str(files.target), "--draft-vocab", str(listed)]) == 2
