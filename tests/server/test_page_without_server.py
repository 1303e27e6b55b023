"""The page in a real browser, given answers written by hand: what it asks, what it shows, and every way it can fail."""

import json

import pytest

from tests.support.answers import STATUS, answer, chunks, events
from tests.support.browser import LAPTOP, ORIGIN, PHONE, Tab, a_browser

CHAT = "/v1/chat/completions"
TEXT = "Two words and more."


@pytest.fixture(scope="module")
def browser():
    with a_browser() as browser:
        yield browser


class Scripted:
    """Answers requests one after the other, the last one for ever, and remembers them."""

    def __init__(self, *answers):
        self.answers, self.bodies, self.headers = list(answers), [], []

    def __call__(self, route):
        self.bodies.append(json.loads(route.request.post_data))
        self.headers.append(route.request.headers)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def open_page(browser):
    """Opens the page with scripted answers; nothing may have gone wrong in the end but what `expected` lists."""
    tabs = []

    def opened(*answers, paths=None, **options):
        tab = Tab.open(browser, **options)
        tab.chat = Scripted(*(answers or [answer()]))
        tab.serve(**{CHAT: tab.chat} | (paths or {}))
        tab.page.goto(ORIGIN + "/")
        tabs.append(tab)
        return tab

    yield opened
    for tab in tabs:
        failed = [p for p in tab.problems if "Failed to load resource" not in p]  # the browser's own word for a 4xx
        assert failed == []
        tab.close()


def send(tab, text="Hello"):
    tab.page.fill("#prompt", text)
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#send:visible")


def answers(tab):
    return [body.inner_text() for body in tab.page.query_selector_all(".assistant .body")]


def test_a_question_is_answered_in_markdown_and_counted(open_page):
    tab = open_page()
    send(tab)
    body = tab.page.locator(".assistant .body")
    assert body.locator("p").inner_text() == TEXT
    assert body.locator("strong").inner_text() == "and more"
    assert body.locator("pre").inner_text() == "print(1)"
    assert tab.page.locator("#n-step").inner_text() == f"{8 / 3:.2f}"
    assert tab.page.locator("#n-accepted").inner_text() == "50\u00a0%"
    assert tab.page.locator("#n-saved").inner_text() == "250 ms"
    assert [row.inner_text().split() for row in tab.page.query_selector_all("#depths li")] == [
        ["1", "75", "%"],
        ["2", "50", "%"],
    ]
    assert tab.page.locator("#said").inner_text().startswith("Answer complete, 9 tokens.")
    (asked,) = tab.chat.bodies
    assert asked["messages"] == [{"role": "user", "content": "Hello"}]
    assert asked["model"] == "toy"
    assert (asked["stream"], asked["include_speculation"], asked["speculative"]) == (True, True, {"enabled": True})
    assert (asked["temperature"], asked["top_p"], asked["max_tokens"]) == (0.7, 0.95, 512)
    assert "seed" not in asked
    assert "authorization" not in tab.chat.headers[0]


def test_f2_colours_each_token_by_who_proposed_it(open_page):
    tab = open_page()
    send(tab)
    assert tab.page.locator("#messages .token").count() == 0, "off by default"
    tab.page.keyboard.press("F2")
    spans = tab.page.query_selector_all("#messages .token")
    assert [(s.inner_text(), s.get_attribute("title")) for s in spans[:4]] == [
        ("Two", "not drafted"),
        (" words", "not drafted"),
        (" ", "proposed by suffix"),
        ("and", "proposed by suffix"),
    ]
    legend = [row.inner_text().split("\n") for row in tab.page.query_selector_all("#legend li")]
    assert [row[0].split()[0] for row in legend] == ["not", "suffix", "ngram_lm", "grammar"]
    assert tab.page.locator("#colours").get_attribute("aria-pressed") == "true"
    tab.page.click("#colours")
    assert tab.page.locator("#messages .token").count() == 0


def test_retry_asks_the_same_again_and_edit_drops_what_came_after(open_page):
    tab = open_page(
        answer([("one", None)]), answer([("two", None)]), answer([("three", None)]), answer([("four", None)])
    )
    send(tab, "first")
    tab.page.click(".assistant >> text=Retry")
    tab.page.wait_for_selector("text=two")
    assert tab.chat.bodies[0] == tab.chat.bodies[1]
    assert answers(tab) == ["two"]
    send(tab, "second")
    assert tab.chat.bodies[2]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "second"},
    ]
    tab.page.locator(".user >> text=Edit").first.click()
    tab.page.fill("textarea[aria-label='Edit the message']", "changed")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("text=four")
    assert tab.chat.bodies[3]["messages"] == [{"role": "user", "content": "changed"}]
    assert answers(tab) == ["four"]
    tab.page.locator(".user >> text=Edit").first.click()
    tab.page.keyboard.press("Escape")
    assert tab.page.locator(".user .body").inner_text() == "changed"
    tab.page.click("#new-chat")
    assert answers(tab) == []
    assert tab.page.locator("#welcome").is_visible()


def test_a_reload_keeps_the_conversation_and_the_settings_and_a_key_only_in_this_tab(open_page):
    tab = open_page()
    tab.page.click("#open-settings")
    for name, value in {
        "temperature": "0",
        "seed": "11",
        "max_tokens": "7",
        "system": "Be brief.",
        "key": "secret",
    }.items():
        tab.page.fill(f"#set-{name}", value)
    tab.page.uncheck("#set-drafting")
    tab.page.click("#close-settings")
    send(tab)
    tab.page.reload()
    assert tab.page.locator(".assistant .body p").inner_text() == TEXT
    assert tab.page.locator("#n-accepted").inner_text() == "50\u00a0%"
    send(tab, "again")
    asked, headers = tab.chat.bodies[-1], tab.chat.headers[-1]
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert len(asked["messages"]) == 4
    assert (asked["temperature"], asked["seed"], asked["max_tokens"]) == (0, 11, 7)
    assert asked["speculative"] == {"enabled": False}
    assert headers["authorization"] == "Bearer secret"
    assert "secret" not in tab.page.evaluate("JSON.stringify(localStorage)")


def test_a_server_that_is_gone_is_said_and_a_retry_finds_it_again(open_page):
    paths = {}
    tab = open_page(paths=paths)
    send(tab, "one")
    tab.page.unroute("**/*")
    tab.serve(**{CHAT: "gone", "/v1/models": "gone", "/v1/status": "gone"})
    send(tab, "two")
    note = tab.page.locator(".assistant .note").last
    assert note.inner_text().startswith("The server does not answer.")
    assert note.get_attribute("role") == "alert"
    tab.page.click("#tab-status")
    tab.page.wait_for_selector("#status-note:has-text('does not answer')")
    tab.page.click("#tab-chat")
    tab.page.reload()
    tab.page.unroute("**/*")
    tab.serve(**{CHAT: tab.chat})
    tab.page.reload()
    tab.page.locator(".assistant >> text=Retry").last.click()
    tab.page.wait_for_selector(".assistant pre >> nth=1")
    assert not tab.page.locator("#banner").is_visible()
    assert [m["role"] for m in tab.chat.bodies[-1]["messages"]] == ["user", "assistant", "user"]


def test_the_banner_tells_of_a_server_that_is_gone_from_the_start(open_page):
    tab = open_page(paths={"/v1/models": "gone"})
    assert "does not answer" in tab.page.locator("#banner").inner_text()
    tab.page.unroute("**/*")
    tab.serve()
    tab.page.click("#reconnect")
    tab.page.wait_for_selector("#banner", state="hidden")
    assert tab.page.locator("#model").inner_text() == "toy"


def refused(status, message, **headers):
    return {"status": status, "json": {"error": {"message": message, "type": "x", "code": None}}, "headers": headers}


def test_a_missing_key_opens_the_settings_at_its_field(open_page):
    tab = open_page(refused(401, "no API key"), answer())
    send(tab)
    assert tab.page.locator("#settings").is_visible()
    assert tab.page.evaluate("document.activeElement.id") == "set-key"
    tab.page.keyboard.type("secret")
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("Escape")
    assert "no API key" in tab.page.locator(".assistant .note").inner_text()
    tab.page.click(".assistant >> text=Retry")
    tab.page.wait_for_selector(".assistant pre")
    assert tab.chat.headers[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (refused(429, "128 calls wait already", **{"Retry-After": "7"}), "busy: 128 calls wait already Try again in 7 s."),
        (refused(400, "the prompt has 9000 tokens; allowed: 8191"), "the prompt has 9000 tokens; allowed: 8191"),
        (refused(503, "the engine has ended"), "The server failed: the engine has ended"),
        ({"status": 502, "body": "<html>Bad gateway</html>"}, "The server failed: "),
        (events(*chunks()[:3], {"error": {"message": "out of memory"}}), "The server failed: out of memory"),
        (events(*chunks()[:3]), "The connection ended before the answer was complete."),
        (answer(finish="length"), "The answer was cut: it reached the most tokens"),
    ],
)  # fmt: skip
def test_what_went_wrong_is_said_beside_the_answer(open_page, given, said):
    tab = open_page(given)
    send(tab)
    assert said in tab.page.locator(".assistant .note").inner_text()
    shown = "Two words" in answers(tab)[0]
    assert shown == (given.get("status") is None), "what had come stays"


def test_the_race_shows_that_the_tokens_are_the_same(open_page):
    tab = open_page()
    tab.page.click("#tab-race")
    tab.page.fill("#race-prompt", "Go")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#verdict.good")
    assert "Same tokens: all 9 are equal." in tab.page.locator("#verdict").inner_text()
    warm_up, drafted, plain = tab.chat.bodies
    assert warm_up["max_tokens"] == 1
    assert drafted.pop("speculative") == {"enabled": True}
    assert plain.pop("speculative") == {"enabled": False}
    assert drafted == plain
    assert f"seed {plain['seed']}" in tab.page.locator("#race-seed").inner_text()
    for lane in ("drafted", "plain"):
        assert "9 tokens" in tab.page.locator(f"#{lane}-tokens").inner_text()
        assert tab.page.locator(f"#{lane}-text pre").inner_text() == "print(1)"
    tab.page.click("#replay")
    tab.page.wait_for_selector("#plain-text pre")


def test_a_race_beside_other_requests_says_so(open_page):
    busy = STATUS | {"engine": STATUS["engine"] | {"num_running": 3}}
    tab = open_page(paths={"/v1/status": {"json": busy}})
    tab.page.click("#tab-race")
    tab.page.fill("#race-prompt", "Go")
    tab.page.click("#race-start")
    tab.page.wait_for_selector("#verdict.good")
    assert "answering others too" in tab.page.locator("#verdict").inner_text()


def test_it_works_where_the_browser_keeps_nothing(open_page):
    tab = open_page()
    tab.page.add_init_script("""for (const name of ["localStorage", "sessionStorage"])
      Object.defineProperty(window, name, { get() { throw new DOMException("blocked", "SecurityError"); } });""")
    tab.page.reload()
    tab.page.click("#theme")
    send(tab)
    assert answers(tab)[0].startswith(TEXT)


def test_damaged_storage_is_left_alone(open_page):
    tab = open_page()
    tab.page.evaluate("localStorage.setItem('foreword.settings', '{'); sessionStorage.setItem('foreword.chat', 'x')")
    tab.page.evaluate("window.addEventListener('pagehide', (e) => e.stopImmediatePropagation(), true)")
    tab.page.reload()
    send(tab)
    assert tab.chat.bodies[0]["temperature"] == 0.7


def test_the_race_shows_where_tokens_differ_and_what_went_wrong(open_page):
    other = chunks()
    other[3]["choices"][0]["token_ids"] = [77]  # with the same text
    other = events(*other, "[DONE]")
    tab = open_page(answer(), answer(), other, refused(400, "too long"))
    tab.page.click("#tab-race")
    tab.page.fill("#race-prompt", "Go")
    tab.page.check("#race-at-once")
    tab.page.click("#race-start")
    tab.page.wait_for_selector("#verdict.bad")
    assert "differ from token 4 on" in tab.page.locator("#verdict").inner_text()
    tab.page.click("#race-start")
    tab.page.wait_for_selector("#verdict:has-text('too long')")
    assert tab.page.locator("#race-start").is_visible()


def test_everything_by_keyboard(open_page):
    tab = open_page()
    page, seen = tab.page, []
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if seen[-1] == "new-chat":
            break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"{seen[-1]} does not show that it has the focus"
    assert seen == ["skip", "tab-chat", "theme", "open-settings", "scroll", "prompt", "send", "colours", "new-chat"]
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-race"
    assert page.locator("#race").is_visible()
    assert not page.locator("#chat").is_visible()
    page.keyboard.press("ArrowLeft")
    page.focus("#open-settings")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "set-temperature"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-settings"
    page.focus(".skip")
    page.keyboard.press("Enter")
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant pre")
    assert tab.chat.bodies[0]["messages"][0]["content"] == "Hello\nthere"
    page.focus(".user button:has-text('Edit')")
    page.keyboard.press("Enter")
    page.keyboard.type("!")
    page.keyboard.press("Enter")
    page.wait_for_selector(".user .body:text-is('Hello there!')")  # of whitespace it sees one kind


def test_settings_out_of_bounds_are_not_used(open_page):
    tab = open_page()
    tab.page.click("#open-settings")
    tab.page.fill("#set-temperature", "9")
    tab.page.fill("#set-top_p", "0.5")
    tab.page.fill("#set-max_tokens", "")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Escape")
    send(tab)
    (asked,) = tab.chat.bodies
    assert (asked["temperature"], asked["top_p"]) == (0.7, 0.5)
    assert "max_tokens" not in asked


def test_nothing_comes_from_elsewhere_and_nothing_else_may_run(open_page):
    tab = open_page()
    urls = []
    tab.page.on("request", lambda request: urls.append(request.url))
    tab.page.reload()
    send(tab)
    assert all(url.startswith((ORIGIN, "data:")) for url in urls)
    tried = tab.page.evaluate(
        """async () => {
          document.body.append(Object.assign(document.createElement("script"), {textContent: "window.ran = 1"}));
          let said = "evaluated";
          try { new Function("return 1")(); } catch { said = "refused"; }
          return [window.ran ?? null, await fetch("http://other.test/").then(() => "fetched", () => "refused"), said];
        }"""
    )
    assert tried[:2] == [None, "refused"]
    policy = tab.page.evaluate("fetch('/').then((r) => r.headers.get('Content-Security-Policy'))")
    assert "unsafe" not in policy
    tab.problems[:] = [p for p in tab.problems if "Content Security Policy" not in p and "violates" not in p]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", ["laptop", "phone"])
def test_it_fits_the_screen_and_the_theme(open_page, theme, size):
    tab = open_page(viewport=LAPTOP if size == "laptop" else PHONE, color_scheme=theme)
    send(tab, "Hello " * 40)
    for view in ("chat", "race", "status"):
        tab.page.click(f"#tab-{view}")
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            f"{view} is wider than the screen"
        )
    tab.page.click("#tab-chat")
    box = tab.page.locator("#prompt").bounding_box()
    assert box["y"] + box["height"] <= tab.page.viewport_size["height"]
    assert tab.page.locator("#messages").bounding_box()["width"] > 300
    dark = "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)) < 64"
    assert tab.page.evaluate(dark) == (theme == "dark")
    for wanted in ("light", "dark"):
        tab.page.click("#theme")
        assert tab.page.locator("#theme").inner_text() == f"Theme: {wanted}"
        assert tab.page.evaluate(dark) == (wanted == "dark")
    tab.page.reload()
    assert tab.page.evaluate(dark), "the choice was forgotten"
