"""The page of models says what is tested, and every family is on it."""

from foreword.checkpoint.families import FAMILIES
from tests.support import model_pages
from tests.support.family_models import CONFIGS


def test_the_page_is_the_table():
    text = model_pages.PAGE.read_text(encoding="utf-8")
    assert text == model_pages.with_table(text), "run python -m tests.support.model_pages"
    assert model_pages.table() in text


def test_every_family_and_every_tested_model_is_on_it():
    assert sorted(name for row in model_pages.ROWS for name in row.families) == sorted(FAMILIES)
    assert sorted(name for row in model_pages.ROWS for name in model_pages.configs_of(row)) == sorted(CONFIGS)
    assert all(model_pages.configs_of(row) for row in model_pages.ROWS)
