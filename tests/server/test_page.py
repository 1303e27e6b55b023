"""The page in a real browser, with the server itself behind it: send, stream, stop, leave, race, key, and a server that ends."""

import contextlib
import itertools
import re
import threading
import time

import httpx2
import pytest

from tests.support.browser import Tab, a_browser
from tests.support.gate import GatedDecoder
from tests.support.serving import chat_tokenizer, listening, toy_app
from tests.support.settled import settled
from tests.support.toy_llm import ScriptDecoder

TOKENIZER = chat_tokenizer()
SCRIPT = TOKENIZER.encode("**hello** world, hello world\n\n- hello world\n- user\n\n```\nhello world\n```\n\n")


@pytest.fixture(scope="module")
def browser():
    with a_browser() as browser:
        yield browser


@pytest.fixture
def gated():
    decoder = GatedDecoder(vocab_size=TOKENIZER.vocab_size)
    yield decoder
    decoder.open_gate()


@contextlib.contextmanager
def opened(browser, app, *, expects_errors=False):
    """The page of an application, both running; in the end nothing may have gone wrong in the browser."""
    with listening(app) as url:
        tab = Tab.open(browser)
        tab.url = url
        tab.page.goto(url)
        tab.page.wait_for_selector("#model:not(:empty), #banner:not([hidden])")
        yield tab
        problems = [p for p in tab.problems if not (expects_errors and "Failed to load resource" in p)]
        assert problems == []
        tab.close()


def scripted_app(**options):
    return toy_app(ScriptDecoder(SCRIPT, TOKENIZER.vocab_size), **options)


def settle(tab, **values):
    tab.page.click("#open-settings")
    for name, value in values.items():
        tab.page.fill(f"#set-{name}", str(value))
    tab.page.click("#close-settings")


def ask(tab, text="hello"):
    tab.page.fill("#prompt", text)
    tab.page.keyboard.press("Enter")


def wait_for_end(tab):
    tab.page.wait_for_selector("#send:visible")


def shown(tab):
    """The last answer as it was received."""
    return tab.page.evaluate("JSON.parse(sessionStorage.getItem('foreword.chat')).at(-1)")


def test_an_answer_is_the_servers_and_each_token_says_who_proposed_it(browser):
    with opened(browser, scripted_app()) as tab:
        settle(tab, max_tokens=60, temperature=0)
        ask(tab)
        wait_for_end(tab)
        message = shown(tab)
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60, "temperature": 0, "top_p": 0.95}
        (choice,) = httpx2.post(f"{tab.url}/v1/chat/completions", json=body, timeout=60).json()["choices"]
        assert message["content"] == choice["message"]["content"]
        assert "".join(token["text"] for token in message["tokens"]) == message["content"]
        assert TOKENIZER.decode([token["id"] for token in message["tokens"]]) == message["content"]
        tab.page.keyboard.press("F2")
        titles = {span.get_attribute("title") for span in tab.page.query_selector_all("#messages .token")}
        assert titles == {"proposed by ngram", "not drafted"}
        assert tab.page.locator("#n-tokens").inner_text() == "60"
        assert float(tab.page.locator("#n-step").inner_text()) > 1
        assert "cut" in tab.page.locator(".assistant .note").inner_text()


def hold_at(decoder, number):
    """Lets so many passes through and keeps the next one; the event is set once the gate is closed."""
    held, seen = threading.Event(), itertools.count(1)

    def count():
        if next(seen) == number:
            decoder.close_gate()
            held.set()

    decoder.on_pass = count
    return held


def ask_and_hold(tab, gated):
    """An answer of which thirty tokens have come, and no more do."""
    settle(tab, max_tokens=3000)
    held = hold_at(gated, 30)
    ask(tab)
    assert held.wait(30)
    tab.page.wait_for_selector(".assistant .body > *")


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_an_answer_grows_and_stop_ends_its_request(browser, gated, how):
    app = toy_app(gated, drafter="none")
    with opened(browser, app) as tab:
        ask_and_hold(tab, gated)
        assert tab.page.locator(".assistant").get_attribute("aria-busy") == "true"
        if how == "button":
            tab.page.click("#stop")
        else:
            tab.page.keyboard.press("Escape")
        wait_for_end(tab)
        assert tab.page.locator(".assistant .note").inner_text() == "Stopped."
        assert 0 < len(shown(tab)["tokens"]) <= 30
        gated.open_gate()
        wait_until_idle(app)


def wait_until_idle(app):
    """Until the engine has let go of what nobody reads any more; the test's own time limit ends the waiting."""
    while settled(app.state.served.llm).running:
        time.sleep(0.01)


def test_leaving_the_page_ends_the_request_and_a_reload_shows_what_had_come(browser, gated):
    app = toy_app(gated, drafter="none")
    with opened(browser, app) as tab:
        ask_and_hold(tab, gated)
        tab.page.reload()
        assert len(tab.page.locator(".assistant .body").inner_text()) > 0
        assert tab.page.locator(".assistant .note").inner_text() == "Stopped when the page was left."
        gated.open_gate()
        wait_until_idle(app)


@pytest.mark.parametrize("how", ["in turn", "at once"])
def test_the_race_finds_the_same_tokens_with_and_without_drafting(browser, how):
    with opened(browser, toy_app()) as tab:
        settle(tab, max_tokens=40, temperature=1)
        tab.page.click("#tab-race")
        tab.page.fill("#race-prompt", "hello world")
        if how == "at once":
            tab.page.check("#race-at-once")
        tab.page.click("#race-start")
        tab.page.wait_for_selector("#verdict.good, #verdict.bad")
        assert re.match(r"Same tokens: all \d+ are equal\. ", tab.page.locator("#verdict").inner_text())
        assert tab.page.locator("#drafted-text").inner_text() == tab.page.locator("#plain-text").inner_text()
        assert tab.page.locator("#plain-text .token:not(.by-none)").count() == 0
        assert tab.page.locator("#replay").is_visible() == (how == "in turn")


def test_the_status_view_counts(browser):
    with opened(browser, scripted_app()) as tab:
        settle(tab, max_tokens=20)
        ask(tab)
        wait_for_end(tab)
        tab.page.click("#tab-status")
        tab.page.wait_for_selector("#status-drafters .depths li")
        assert tab.page.locator("#status-now").inner_text().split("\n")[:2] == ["Running requests", "0 of 8"]
        assert "20" in tab.page.locator("#status-totals").inner_text()
        assert "MiB" in tab.page.locator("#status-memory").inner_text()
        assert "ngram" in tab.page.locator("#status-drafters h3").inner_text()


def test_a_server_with_a_key_asks_for_it(browser):
    with opened(browser, scripted_app(api_key="secret"), expects_errors=True) as tab:
        tab.page.wait_for_selector("#settings[open]")
        assert tab.page.evaluate("document.activeElement.id") == "set-key"
        tab.page.fill("#set-key", "secret")
        tab.page.click("#close-settings")
        tab.page.wait_for_selector("#banner", state="hidden")
        settle(tab, max_tokens=5)
        ask(tab)
        wait_for_end(tab)
        assert len(shown(tab)["tokens"]) == 5


def test_what_the_server_refuses_is_said_in_its_words(browser):
    with opened(browser, scripted_app(), expects_errors=True) as tab:
        ask(tab, "hello " * 5000)
        wait_for_end(tab)
        note = tab.page.locator(".assistant .note")
        assert note.get_attribute("role") == "alert"
        assert "context" in note.inner_text()


def test_the_page_says_when_its_server_has_ended(browser):
    with listening(scripted_app()) as url:
        tab = Tab.open(browser)
        tab.page.goto(url)
        tab.page.wait_for_selector("#model:not(:empty)")
    ask(tab)
    wait_for_end(tab)
    assert tab.page.locator(".assistant .note").inner_text().startswith("The server does not answer.")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url)
    tab.close()
