"""Medusa-2: a target tuned with its heads. Losses, breaks, the folder that comes out, and where its heads may draft."""

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from foreword.bench.cells import make_cells
from foreword.bench.methods import method_facts
from foreword.checkpoint.opened import open_checkpoint
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from foreword.train.data.batches import collate
from foreword.train.loop.divergence import Change, divergence, weighted_gradient
from foreword.train.loop.session import target_tables, train
from foreword.train.loop.settings import TrainSettings
from foreword.train.loop.training_loop import LoopOptions, Trainer
from foreword.train.out.card import model_card
from tests.support.medusa_heads import legacy_names, random_heads
from tests.support.tiny_llm import write_tiny_llm
from tests.unit.test_train_run import (
    SETTINGS,
    Quiet,
)

peft = pytest.importorskip("peft", reason="Medusa-2 tunes through peft, which is not installed")
from foreword.train.methods import medusa2  # noqa: E402

TUNING = TrainSettings(
    draft_vocab_size=64, num_heads=3, dtype=torch.float32, soft_targets=0.0, lora_rank=4, heads_weight=0.5
)
PARAMS = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def make(llm, data, tmp_path_factory) -> Callable[..., medusa2.Medusa2]:
    def made(**changes):
        folder = tmp_path_factory.mktemp("resume")
        return medusa2.make(target_tables(llm), data[2], replace(TUNING, **changes), folder)

    return made


@pytest.fixture(scope="module")
def batch(data):
    return collate(data[2], [e for e in data[2].entries if e.temperature == 0.0 and e.answer_len > 2], 512)


@pytest.fixture(scope="module")
def trained(make, batch):
    """Forty steps on one batch."""
    method, seen = make(), []
    optimiser = torch.optim.AdamW(method.module.parameters(), lr=6e-3)
    for step in range(40):
        method.begin_step(step / 40)
        losses = method.loss(batch)
        optimiser.zero_grad()
        losses.loss.backward()
        optimiser.step()
        seen.append(losses)
    return method, seen


@pytest.fixture(scope="module")
def tuned(trained, batch, tmp_path_factory):
    """The folder of the model that those steps made."""
    folder = tmp_path_factory.mktemp("tuned") / "model"
    trained[0].evaluate([(batch, [None] * len(batch.token_ids))])
    trained[0].save(folder, {"method": "medusa2", "training_s": 7.5})
    return folder


@pytest.fixture(scope="module")
def prompts(data):
    return [list(a.token_ids[: a.prompt_len]) for a in data[1][:4]]


def weights(folder):
    return load_file(folder / "model.safetensors")


def said(model, drafter, prompts, **options):
    return [r.token_ids for r in LLM(model, drafter, **options).generate(prompts, PARAMS)]


def moved(method, batch):
    """Divergence from the original, and the heads' loss, without gradients."""
    with torch.no_grad():
        hidden, original = (method._tuned.hidden(batch, is_tuned=now) for now in (True, False))
        rows = medusa2._speaking(batch)
        ours, theirs = (x[:, :-1].flatten(0, 1)[rows] for x in (hidden, original))
        heads = method._heads.loss(replace(batch, hidden=hidden)).loss
    return float(divergence(ours, theirs, method._head)), float(heads)


def test_divergence_and_its_gradient_against_torch():
    generator = torch.Generator().manual_seed(1)
    tuned, original, head = (torch.randn(size, generator=generator) for size in ((300, 8), (300, 8), (20, 8)))
    ours, theirs = tuned.clone().requires_grad_(), tuned.clone().requires_grad_()
    found = divergence(ours, original, head)
    log_q, log_p = (torch.log_softmax(x @ head.T, -1) for x in (theirs, original))
    wanted = torch.nn.functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    torch.testing.assert_close(found, wanted)
    (3 * found).backward()
    (3 * wanted).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    same = divergence(original.clone().requires_grad_(), original, head)
    assert same.item() == 0.0


def test_a_change_is_counted_over_all_rows():
    generator = torch.Generator().manual_seed(2)
    now, before, head = (torch.randn(size, generator=generator) for size in ((300, 8), (300, 8), (20, 8)))
    tokens = torch.randint(20, (300,), generator=generator)
    change = Change()
    for part in (slice(0, 70), slice(70, 300)):
        change.add(now[part], before[part], head, tokens[part])
    facts = change.facts()
    nats = torch.nn.functional.cross_entropy(before @ head.T, tokens).item()
    assert facts["perplexity_original"] == pytest.approx(math.exp(nats), rel=1e-4)
    assert facts["perplexity_change_percent"] == pytest.approx(
        100 * (facts["perplexity_tuned"] / facts["perplexity_original"] - 1), abs=0.01
    )
    same = ((now @ head.T).argmax(-1) == (before @ head.T).argmax(-1)).float().mean().item()
    assert facts["same_likeliest_token"] == pytest.approx(same, abs=1e-4)
    assert facts["divergence_nats"] == pytest.approx(divergence(now, before, head).item(), abs=1e-4)


def test_gradients_count_as_often_as_they_are_told():
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(weighted_gradient(x, 0.25), x)
    weighted_gradient(x, 0.25).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.25] * 3


def test_states_are_those_of_the_target_whatever_stands_beside(llm, make, batch, data):
    """Padding changes nothing; the original's states are what foreword's own decoder stored."""
    method = make()
    states = method._tuned.hidden(batch, is_tuned=False)
    column = torch.arange(batch.num_columns - batch.answer_columns, batch.num_columns)
    own = column >= batch.answer_starts[:, None]
    torch.testing.assert_close(states[own], batch.hidden.float()[own], rtol=2e-2, atol=2e-2)
    assert torch.equal(states, method._tuned.hidden(batch, is_tuned=True)), "adapters begin as zero"
    entries = [e for e in data[2].entries if e.temperature == 0.0 and e.answer_len > 2]
    for i, entry in list(enumerate(entries))[:3]:
        alone = method._tuned.hidden(collate(data[2], [entry], 512), is_tuned=False)[0]
        torch.testing.assert_close(states[i, -len(alone) :], alone, rtol=1e-4, atol=1e-4)


def test_first_the_heads_alone_then_both(make, batch):
    method = make()
    adapters = [p for name, p in method.module.named_parameters() if name.startswith("adapters.")]
    heads = [p for name, p in method.module.named_parameters() if name.startswith("heads.")]
    assert len(adapters) == 2 * 7 * 2  # two matrices for seven maps in each of two layers
    assert adapters
    assert heads
    method.begin_step(0.1)
    method.loss(batch).loss.backward()
    assert all(p.grad is None for p in adapters)
    assert all(p.grad is not None for p in heads)
    first = [p.grad.clone() for p in heads]
    method.begin_step(0.6)
    assert method._weight == pytest.approx(0.5)
    for p in heads:
        p.grad = None
    method.loss(batch).loss.backward()
    assert any(float(p.grad.abs().max()) > 0 for p in adapters)
    # The tuned target is still the original, so the heads learn what they learnt before, at full weight.
    for p, before in zip(heads, first, strict=True):
        torch.testing.assert_close(p.grad, before, rtol=1e-3, atol=1e-6)


def test_adapters_learn_at_a_rate_of_their_own(make, data, tmp_path):
    options = LoopOptions(max_steps=10, learning_rate=1e-2, dtype=torch.float32)
    trainer = Trainer(make(), data[2], options, tmp_path, {}, lambda _: None, lambda *_: None)
    trainer._step()
    groups = trainer._optimiser.param_groups
    assert [group["factor"] for group in groups] == [1.0, 1.0, 0.25]
    assert groups[2]["lr"] == pytest.approx(groups[0]["lr"] / 4)
    assert sum(len(group["params"]) for group in groups) == len(list(trainer._method.module.parameters()))


def test_one_batch_lowers_both_losses(trained, batch, make):
    """The heads learn it by heart; the divergence, which tuning brings, is brought down again by its own loss."""
    method, seen = trained
    _, heads_before = moved(make(), batch)
    far, heads_after = moved(method, batch)
    assert heads_after < 0.1 * heads_before
    assert min(seen[-1].accuracy) > 0.9
    assert far > 0
    method = make(heads_weight=0.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in method.module.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    far, _ = moved(method, batch)
    optimiser = torch.optim.AdamW(method.module.parameters(), lr=3e-3)
    method.begin_step(0.9)
    for _ in range(25):
        optimiser.zero_grad()
        method.loss(batch).loss.backward()
        optimiser.step()
    near, heads = moved(method, batch)
    assert near < 0.5 * far
    assert heads < heads_before


def test_a_run_that_was_killed_ends_as_one_that_was_not(llm, questions, data, tmp_path, wide_split, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = replace(SETTINGS, max_steps=6, lora_rank=4, dtype=torch.float32, learning_rate=1e-2)
    reporter = Quiet()
    assert train("medusa2", llm, questions, whole, settings, reporter, data=data[0]).step == 6
    assert reporter.num_best == 1
    card = json.loads((whole / "config.json").read_text())["foreword"]
    heads = json.loads((whole / "medusa" / "config.json").read_text())["foreword"]
    assert (card["method"], card["lora_rank"], card["heads_weight"]) == ("medusa2", 4, 0.01)
    assert card["base_fingerprint"] == llm.model.checkpoint.fingerprint
    assert heads["target_fingerprint"] == open_checkpoint(whole).fingerprint
    assert card["perplexity_original"] > 1.0
    text = (whole / "README.md").read_text()
    assert "A different model" in text
    assert f"| perplexity | {card['perplexity_original']:.3f} | {card['perplexity_tuned']:.3f} |" in text
    assert "tokens per step**" in text, "measured by the verifier beside the tuned model"
    options = LoopOptions
    monkeypatch.setattr("foreword.train.loop.session.LoopOptions", lambda **o: options(**o, save_every_s=0.0))
    with pytest.raises(KeyboardInterrupt):
        train("medusa2", llm, questions, killed, settings, Quiet(stop_at=4), data=data[0])
    train("medusa2", llm, questions, killed, settings, Quiet(), data=data[0])
    for folder in (".", "medusa"):
        first, second = weights(whole / folder), weights(killed / folder)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    states = [torch.load(out / "resume" / "checkpoint.pt", weights_only=True)["module"] for out in (whole, killed)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(float(value.abs().max()) > 0 for name, value in states[0].items() if "lora_B" in name)
    with pytest.raises(ConfigError, match="lora_rank 4, now it is 8"):
        train("medusa2", llm, questions, killed, replace(settings, lora_rank=8), Quiet(), data=data[0])


def test_without_a_step_it_is_the_original(make, tmp_path, llm, batch):
    """A float32 folder is written back bit by bit, and says the same; a quantised file is rounded to bfloat16."""
    folder = write_tiny_llm(tmp_path / "tiny").target
    original = LLM(folder, "none", runtime="torch", dtype="float32", cache_dir=tmp_path / "cache")
    target, untrained = target_tables(original), make()
    untrained._tuned, untrained._target = medusa2.TunedTarget(target, 4, 0, torch.float32), target
    untrained.save(tmp_path / "same", {"method": "medusa2"})
    first, second = weights(folder), weights(tmp_path / "same")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    written = open_checkpoint(tmp_path / "same")
    assert (written.dtype_name, written.spec) == ("float32", original.model.checkpoint.spec)
    assert written.eos_token_ids == original.model.checkpoint.eos_token_ids
    same = LLM(tmp_path / "same", "none", runtime="torch", dtype="float32", cache_dir=tmp_path / "cache")
    texts = ["ab bad", "he said"]
    assert said(same.model, "none", texts) == said(original.model, "none", texts)
    fresh = make()
    fresh.evaluate([(batch, [None] * len(batch.token_ids))])
    assert fresh._change.facts()["perplexity_change_percent"] == 0.0
    fresh.save(tmp_path / "rounded", {"method": "medusa2"})
    rounded = open_checkpoint(tmp_path / "rounded")
    assert rounded.dtype_name == "bfloat16"
    name = "layers.1.down.weight"
    assert torch.equal(rounded.tensor(name), llm.model.checkpoint.tensor(name).bfloat16())


def test_the_tokenizer_comes_along(tuned, llm):
    theirs, ours = llm.model.checkpoint.tokenizer, open_checkpoint(tuned).tokenizer
    assert (ours.special_tokens, ours.chat_template) == (theirs.special_tokens, theirs.chat_template)
    messages = [{"role": "user", "content": "hello 12\n\n wörld <|im_end|>"}]
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)
    assert open_checkpoint(tuned).eos_token_ids == llm.model.checkpoint.eos_token_ids
    ids = ours.encode("hello 12 <tool> ä")
    assert ids == theirs.encode("hello 12 <tool> ä")
    assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("runtime", ["torch", "native"])
def test_heads_and_tuned_target_say_what_the_tuned_target_says(runtime, tuned, prompts, llm, tmp_path):
    if runtime == "native":
        pytest.importorskip("foreword_kernels", reason="the kernels are not built")
    plain = LLM(tuned, "none", runtime=runtime, threads=1, cache_dir=tmp_path)
    answers = said(plain.model, "none", prompts)
    assert answers != said(llm.model, "none", prompts), "tuning that changes nothing shows nothing"
    drafting = LLM(plain.model, "medusa2")
    results = drafting.generate(prompts, PARAMS)
    assert [r.token_ids for r in results] == answers
    assert sum(r.stats.num_steps for r in results) < 0.6 * sum(len(ids) - 1 for ids in answers)
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=5)
    drawn = [[r.token_ids for r in engine.generate(prompts, sampling)] for engine in (drafting, plain)]
    assert drawn[0] == drawn[1]
    assert said(plain.model, f"medusa2={tuned}", prompts) == answers
    assert said(plain.model, f"medusa2={tuned / 'medusa'}", prompts) == answers
    assert said(plain.model, "suffix,medusa2", prompts) == answers


def test_the_merged_weights_are_those_that_were_trained(trained, tuned, batch):
    """Transformers reads the folder, and its states are those of the model with adapters, but for bfloat16."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tuned, dtype=torch.float32)
    start, first = int(batch.starts[0]), batch.num_columns - batch.answer_columns
    with torch.no_grad():
        merged = model.model(batch.token_ids[:1, start:]).last_hidden_state[0][first - start :]
    adapted, original = (trained[0]._tuned.hidden(batch, is_tuned=now)[0].detach() for now in (True, False))
    assert len(merged) == len(adapted)
    assert float((merged - adapted).abs().mean()) < 0.1 * float((original - adapted).abs().mean())


def test_beside_any_other_target_the_heads_are_refused(llm, tuned, tmp_path):
    with pytest.raises(
        ConfigError, match=r"tuned together with another model than .*--model .*model --drafter medusa2"
    ):
        LLM(llm.model, f"medusa2={tuned}")
    with pytest.raises(ConfigError, match=r"was not tuned with Medusa-2.*foreword train medusa2"):
        LLM(llm.model, "medusa2")
    config = json.loads((tuned / "medusa" / "config.json").read_text())
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps({**config, "foreword": {"method": "medusa"}}))
    (plain / "model.safetensors").write_bytes((tuned / "medusa" / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="does not say which model was tuned with these heads; .*medusa="):
        LLM(llm.model, f"medusa2={plain}")
    assert LLM(llm.model, f"medusa={tuned / 'medusa'}").config.method == "medusa", (
        "as they are, they may draft anywhere"
    )


def test_heads_among_a_models_own_tensors_are_its_own(tmp_path):
    """The full-model layout of Medusa's authors is a tuned target with its heads."""
    files = write_tiny_llm(tmp_path / "tiny")
    spec = open_checkpoint(files.target).spec
    state = load_file(files.target / "model.safetensors")
    save_file(state | legacy_names(random_heads(spec), "medusa_head."), files.target / "model.safetensors")
    model = LLM(files.target, "none", runtime="torch", dtype="float32", cache_dir=tmp_path / "cache").model
    drafting = LLM(model, "medusa2")
    assert said(model, "medusa2", ["ab bad"]) == said(model, "none", ["ab bad"])
    assert drafting.config.method == "medusa2"


def test_a_bench_says_that_the_target_is_tuned(tuned, tmp_path):
    cell = make_cells(["none", "medusa2"], ["match"], [0.0], [1])[1]
    assert cell.label == "medusa2 (tuned target)"
    loaded = LLM(tuned, "medusa2", runtime="torch", dtype="float32", cache_dir=tmp_path)
    facts = method_facts(loaded)
    assert (facts["needs"], facts["fits"]) == ("a tuned target", "a different model: different output")
    assert facts["training_s"] == 7.5
    assert facts["weight_bytes"] == (tuned / "medusa" / "model.safetensors").stat().st_size


def test_the_console_says_that_it_is_another_model(trained, batch):
    from foreword.cli.render.train_report import best_text, use_text

    measures = trained[0].evaluate([(batch, [None] * len(batch.token_ids))])
    text = best_text(measures, None)
    assert f"perplexity {measures.also['perplexity_tuned']:.3f}, the original's" in text
    assert best_text(replace(measures, also={}), None) in text
    assert use_text("medusa2", "here").endswith("--drafter medusa2 --model here")
    assert use_text("medusa", "here").endswith("--drafter medusa=here")


def test_inspect_says_which_target_they_are_for(llm, tuned, tmp_path):
    from foreword.bench.drafter_facts import drafter_facts, drafter_kind, fit_facts

    heads = str(tuned / "medusa")
    assert drafter_kind(heads) == "medusa2"
    assert drafter_kind(str(tuned)) is None, "a model"
    assert drafter_facts("medusa2", heads)["drafter"] == "medusa2"
    own = LLM(tuned, "none", runtime="torch", dtype="float32", cache_dir=tmp_path).model
    assert fit_facts("medusa2", heads, own, False)["fits"]
    found = fit_facts("medusa2", heads, llm.model, False)
    assert not found["fits"]
    assert "tuned together with another model" in found["reason"]


def test_no_one_is_given_a_tuned_target_unasked():
    from foreword.tune.candidates import default_candidates

    assert all("medusa2" not in candidate.name for candidate in default_candidates("f" * 64, ()))


def test_without_peft_the_command_says_what_to_install(monkeypatch, make):
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"needs peft.*pip install"):
        make()
    with pytest.raises(ConfigError, match="heads_weight is -1"):
        replace(TUNING, heads_weight=-1.0)


def test_cards_of_other_methods_say_that_words_stay():
    from foreword.train.methods.method import Measures

    card = model_card(
        method="medusa",
        model="m",
        licences={},
        questions=[],
        answers=[],
        measures=Measures([0.5], 1.5),
        facts={},
        verified=None,
    )
    assert "The model's output does not change" in card
