"""What the tests of training share: one tiny model, its answers and features, made once a run of the tests."""

from pathlib import Path

import pytest

from foreword.engine.llm import LLM
from foreword.train.data.answers import Answer, AnswerStore
from foreword.train.data.extract import extract_features
from foreword.train.data.features import FeatureStore
from foreword.train.data.self_distill import DistillOptions, Question, self_distill
from tests.support.tiny_chat import write_tiny_chat

OPTIONS = DistillOptions(num_tokens=400, max_new_tokens=12, held_out=0.4)


@pytest.fixture(scope="session")
def llm(tmp_path_factory) -> LLM:
    """A tiny random model with a chat template, on torch."""
    folder = tmp_path_factory.mktemp("tiny")
    return LLM(write_tiny_chat(folder), "none", batch_size=8, runtime="torch", cache_dir=folder / "cache")


@pytest.fixture(scope="session")
def questions(llm) -> list[Question]:
    """Two groups of them."""

    def ask(i, group):
        prompt = llm.encode([{"role": "user", "content": f"{group} question {i}"}])
        return Question(f"{group}/{i}", group, group, tuple(prompt))

    return [ask(i, "long") for i in range(20)] + [ask(i, "short") for i in range(3)]


@pytest.fixture(scope="session")
def data(llm, questions, tmp_path_factory) -> tuple[Path, list[Answer], FeatureStore]:
    """Answers and features, in a folder that nothing is to be added to."""
    folder = tmp_path_factory.mktemp("data")
    answers = self_distill(llm, questions, AnswerStore(folder), OPTIONS, lambda *_: None)
    store = FeatureStore(folder, (1, 2), llm.model.decoder.spec.hidden_size)
    store.begin({"model_fingerprint": llm.model.checkpoint.fingerprint, "dtype": llm.model.choice.dtype})
    extract_features(llm.model.decoder, answers, store, lambda *_: None)
    return folder, answers, store


@pytest.fixture
def wide_split(monkeypatch):
    """Few questions: more of them held out."""
    from foreword.train.loop import session

    monkeypatch.setattr(session, "DistillOptions", lambda **options: DistillOptions(held_out=0.4, **options))
