"""Grammars: the answer can be nothing else, the same with and without speculation; what is forced is drafted for free."""

import json
import random
from functools import cache

import numpy as np
import pytest

from foreword.engine.guided import guided_tree
from foreword.errors import ConfigError
from foreword.sampling.grammar import Grammar
from foreword.sampling.grammar_matcher import GrammarCompiler
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from tests.support.option_oracle import plain_answer
from tests.support.scripted_drafters import SCRIPTS, ScriptedDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_llm import byte_tokenizer, toy_llm

pytest.importorskip("llguidance")
partial = pytest.importorskip("regex")

TOKENIZER = byte_tokenizer("hello", " world", "wor", '{"', '":', "true", "name", " the", "th")
DECODER = ToyDecoder(vocab_size=TOKENIZER.vocab_size + 5, sharpness=1.0)  # padded beyond the tokenizer
END = TOKENIZER.eos_token_id
PROMPT = TOKENIZER.encode("hello")
CHOICES = ["hello world", "hello there", "hell", "h(e)l|lo*", "{}"]
PATTERNS = {
    "choice": (Grammar.choice(CHOICES), "|".join(partial.escape(c) for c in CHOICES)),
    "regex": (Grammar.regex("(hello|wor[a-f0-9]{3}) world(!|, the[a-z]{2,5}\\.)+"),) * 2,
    "digits": (Grammar.regex("[0-9]{12}"),) * 2,
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["hello", "world"]}, "age": {"type": "boolean"}, "tags": {
        "type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": False,
}  # fmt: skip
DRAFTERS = ["always-right-4", "always-wrong-4", "right-until-2", "bursts", "bushy"]
DRAWS = {"greedy": {}, "sampled": {"temperature": 1.0, "seed": 3}}


def pattern_of(grammar) -> str:
    return grammar if isinstance(grammar, str) else grammar.source


def fits(pattern: str):
    """The grammar by another library: a token is allowed if a match may begin with the text and it."""
    compiled = partial.compile(pattern.encode())

    @cache
    def is_prefix(text: bytes) -> bool:
        return compiled.fullmatch(text, partial=True) is not None

    def allowed(answer, token):
        text = b"".join(TOKENIZER.token_bytes(t) for t in answer)
        if token == END:
            return compiled.fullmatch(text) is not None
        more = TOKENIZER.token_bytes(token)
        return bool(more) and is_prefix(text + more)

    return allowed


def replayed(grammar: Grammar):
    """The grammar by a matcher of its own for every place, which consumes the answer from its first token."""

    @cache
    def mask(answer: tuple[int, ...]):
        matcher = GrammarCompiler(TOKENIZER, DECODER.spec.vocab_size, [END]).compile(grammar)._matcher
        assert all(matcher.consume_token(token) for token in answer)
        return np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")

    return lambda answer, token: bool(mask(tuple(answer))[token])


@cache
def plain(name: str, draws: str):
    params = SamplingParams(max_tokens=40, **DRAWS[draws])
    return plain_answer(DECODER, PROMPT, params, eos=(END,), may_follow=replayed(PATTERNS[name][0]))


def llm_for(drafter: str, answer):
    if drafter in ("none", "ngram"):
        return toy_llm(DECODER, TOKENIZER, drafter)
    script = ScriptedDrafter(drafter, SCRIPTS[drafter], {tuple(PROMPT): answer}, DECODER.spec.vocab_size)
    return toy_llm(DECODER, TOKENIZER, script)


@pytest.mark.parametrize("drafter", ["none", "ngram", *DRAFTERS])
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_grammar_gives_the_tokens_of_plain_decoding(name, draws, drafter):
    answer = plain(name, draws)
    assert answer.finish_reason == "stop"
    llm = llm_for(drafter, [*answer.token_ids, 3, 4, 5])
    params = SamplingParams(max_tokens=40, grammar=PATTERNS[name][0], **DRAWS[draws])
    results = llm.generate([PROMPT] * 3, [params, SamplingParams(max_tokens=10), params])
    for result in (results[0], results[2]):
        assert result.token_ids == answer.token_ids
        assert result.finish_reason == "stop"
        assert partial.fullmatch(pattern_of(PATTERNS[name][1]), result.text)
    assert results[1].token_ids == plain_answer(DECODER, PROMPT, SamplingParams(max_tokens=10), eos=(END,)).token_ids


@pytest.mark.parametrize("draws", DRAWS)
def test_json_fits_its_schema(draws):
    params = SamplingParams(max_tokens=400, grammar=Grammar.json_schema(SCHEMA), **DRAWS[draws])
    (expected,) = toy_llm(DECODER, TOKENIZER, "none").generate([PROMPT], params)
    assert expected.finish_reason == "stop"
    data = json.loads(expected.text)
    assert set(data) == {"name", "age", "tags"}
    assert data["name"] in ("hello", "world")
    assert isinstance(data["age"], bool)
    assert 2 <= len(data["tags"]) <= 3
    assert all(isinstance(t, int) and 0 <= t <= 9 for t in data["tags"])
    for drafter in ("ngram", *DRAFTERS):
        (result,) = llm_for(drafter, expected.token_ids).generate([PROMPT], params)
        assert result.token_ids == expected.token_ids
        assert result.stats.num_steps < expected.stats.num_steps, "forced tokens should have saved steps"


def test_forced_tokens_come_for_free_and_only_with_a_drafter():
    """`hello world` once begun is forced to its end, and the end token with it."""
    params = SamplingParams(max_tokens=40, grammar=Grammar.choice(["hello world, the world"]))
    (without,) = toy_llm(DECODER, TOKENIZER, "none").generate([PROMPT], params)
    (drafted,) = toy_llm(DECODER, TOKENIZER, "ngram").generate([PROMPT], params)
    assert without.token_ids == drafted.token_ids
    assert without.text == "hello world, the world"
    assert without.stats.drafted_tokens == 0
    assert without.stats.num_steps == len(without.token_ids) - 1
    assert drafted.stats.num_steps <= 3


@pytest.mark.parametrize("options", [{"logit_bias": {END: 50.0}}, {"min_tokens": 30}, {"stop": " wor"}])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_other_options_beside_a_grammar(options, drafter):
    """A wish to end does not end it early; a grammar that is done ends it despite min_tokens; stop strings cut."""
    grammar = Grammar.choice(["hello world"])
    (result,) = toy_llm(DECODER, TOKENIZER, drafter).generate(
        [PROMPT], SamplingParams(max_tokens=40, grammar=grammar, **options)
    )
    assert result.finish_reason == "stop"
    assert result.text == ("hello" if "stop" in options else "hello world")


def matcher(grammar: Grammar):
    return GrammarCompiler(TOKENIZER, DECODER.spec.vocab_size, [END]).compile(grammar)


def test_a_matcher_is_a_function_of_the_path():
    """[R44]: jumping between paths, legal and not, never leaves anything behind."""
    used, paths = matcher(PATTERNS["choice"][0]), [[]]
    for text in (*CHOICES, "hello x", "zebra", "hellooo", "{}{}"):
        ids = TOKENIZER.encode(text)
        paths += [ids[:n] for n in range(len(ids) + 1)] + [[*ids, END]]
    random.Random(4).shuffle(paths)
    check = fits(pattern_of(PATTERNS["choice"][1]))
    for path in paths * 2:
        fresh = matcher(PATTERNS["choice"][0])
        assert used.allows(path) == fresh.allows(path) == all(check(path[:n], path[n]) for n in range(len(path)))
        if END in path:
            continue
        masks = [w.allowed(path) for w in (used, fresh)]
        if masks[0] is None or masks[1] is None:
            assert masks == [None, None]
            continue
        assert masks[0].tolist() == masks[1].tolist()
        assert used.forced(path) == fresh.forced(path)
        expected = [check(path, token) for token in range(DECODER.spec.vocab_size)]
        if forced := fresh.forced(path):  # text without a choice is written as the tokenizer writes it
            assert masks[0].nonzero().flatten().tolist() == forced[:1]
            assert expected[forced[0]]
        else:
            assert masks[0].tolist() == expected


def test_forbidden_drafts_are_pruned_and_forced_ones_grow():
    """[R47]: after "hell", "o" leads on to a world and "x" nowhere."""
    hell = TOKENIZER.encode("hell")
    o, x, space_world = TOKENIZER.encode("o")[0], TOKENIZER.encode("x")[0], TOKENIZER.encode(" world")[0]
    tree = DraftTree(
        [hell[-1], x, o, x, x, space_world], [-1, 0, 0, 1, 2, 2], accept_probs=[1.0, 0.5, 0.4, 0.3, 0.2, 0.1]
    )
    grammar = matcher(Grammar.choice(["hello world!", "help"]))
    guided = guided_tree(tree, grammar, hell, max_depth=9)
    guided.check(DECODER.spec.vocab_size)
    assert guided.token_ids == [hell[-1], o, space_world, *TOKENIZER.encode("!"), END]
    assert guided.parents == [-1, 0, 1, 2, 3]
    assert guided.accept_probs == [1, 0.4, 0.1, 1.0, 1.0]
    assert guided_tree(tree, grammar, hell, max_depth=2).num_nodes == 3
    drawn = DraftTree([hell[-1], x], [-1, 0], draft_probs=[None, object()])
    assert guided_tree(drawn, grammar, hell, max_depth=9) is drawn, (
        "dropping drawn nodes would change the law of the rest"
    )
    plain_tree = DraftTree.chain([1, hell[-1]])
    assert guided_tree(plain_tree, matcher(Grammar.regex("[a-z ]*")), hell, max_depth=9) is plain_tree


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar.regex("("), "the regex of the grammar cannot be used"),
        (Grammar.json_schema({"type": "nonsense"}), "the json_schema of the grammar cannot be used"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_named(grammar, message):
    with pytest.raises(ConfigError, match=message):
        toy_llm(DECODER, TOKENIZER).generate([PROMPT], SamplingParams(grammar=grammar))


TOO_MUCH = {
    "(((": "the regex of the grammar cannot be used: unclosed group",
    "((" * 3000 + "a" + "))" * 3000: "the regex of the grammar cannot be used: exceed the maximum number of nested",
    "(?=a)b": "the regex of the grammar cannot be used: look-around",
    "(a|aa|aaa){1,500}" * 400: "the grammar cannot be followed: lexer error: too many .*; give a smaller one",
}


def follow(grammar: Grammar, text: str) -> None:
    used, path = matcher(grammar), TOKENIZER.encode(text)
    for num in range(len(path) + 1):
        used.allowed(path[:num])


@pytest.mark.parametrize("pattern", TOO_MUCH, ids=["open", "deep", "look-around", "huge"])
def test_a_regex_that_is_too_much_is_one_short_line(pattern, capfd):
    with pytest.raises(ConfigError, match=TOO_MUCH[pattern]) as caught:
        follow(Grammar.regex(pattern), "aa")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert capfd.readouterr() == ("", "")


def test_wrong_sources_are_refused():
    with pytest.raises(ConfigError, match="is not JSON"):
        Grammar.json_schema("{")
    with pytest.raises(ConfigError, match="the choices of a grammar"):
        Grammar.choice([])
    with pytest.raises(ConfigError, match="the choices of a grammar"):
        Grammar.choice("abc")
    with pytest.raises(ConfigError, match="no end token"):
        GrammarCompiler(TOKENIZER, 300, [])


SPELLED = f"hello {TOKENIZER.special_tokens['eos_token']} world"


@pytest.mark.parametrize("drafter", ["none", "ngram"])
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Grammar.choice([SPELLED]), SPELLED),
        (Grammar.regex("hello <end> world"), SPELLED),
        (Grammar.json_schema({"const": SPELLED}), json.dumps(SPELLED)),
        (Grammar.choice(["<end>"]), "<end>"),
    ],
    ids=["choice", "regex", "json", "alone"],
)
def test_a_special_token_that_a_grammar_spells_is_text(grammar, text, draws, drafter):
    """Its letters, not the token: that would end the answer, or leave the grammar."""
    params = SamplingParams(max_tokens=60, grammar=grammar, **DRAWS[draws])
    (result,) = toy_llm(DECODER, TOKENIZER, drafter).generate([PROMPT], params)
    assert (result.text, result.finish_reason) == (text, "stop")
    assert END not in result.token_ids[:-1]


@pytest.mark.parametrize("half", ["\ud800", "a\udcff"])
def test_half_a_surrogate_pair_in_a_grammar_is_refused(half):
    for make in (Grammar.regex, lambda text: Grammar.choice([text]), lambda text: Grammar.json_schema({"const": text})):
        with pytest.raises(ConfigError, match="which is no Unicode character"):
            make(half)


def test_a_pattern_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="the regular expression of a grammar is None; allowed: a text"):
        Grammar.regex(None)
    with pytest.raises(ConfigError, match="is not JSON"):
        Grammar.json_schema("[" * 100_000)
