"""Whether everybody can use the page: names of controls, contrast, structure, in both themes and all views."""

import pytest

from tests.support.answers import STATUS, TOKENS, answer
from tests.support.browser import LAPTOP, ORIGIN, PHONE, Tab, a_browser, axe_source

DRAFTERS = ["suffix", "ngram_lm", "ngram", "grammar", "draft_model", "eagle", "eagle3", "medusa", "lookahead"]
RICH = [
    *TOKENS,
    *[(f" {name}", name) for name in DRAFTERS],
    ("\n\n> quote [link](https://a.b) `code`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", None),
]
# Each visible text and its contrast to what is behind it, where that is below what WCAG's level AA asks for.
LOW_CONTRAST = """() => {
  const rgb = (color) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest("script, .hidden, .skip")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgb(style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) found.push([texts.currentNode.data.trim(), ratio.toFixed(2)]);
  }
  return found;
}"""
# What can be operated, is to be seen, and has no name.
NAMELESS = """() => [...document.querySelectorAll("button, a, input, textarea, [tabindex='0'], [role=region], dialog")]
  .filter((node) => node.checkVisibility())
  .filter((node) => {
    const by = node.getAttribute("aria-labelledby");
    const name = node.getAttribute("aria-label") ?? (by && document.getElementById(by).textContent)
      ?? (node.labels?.length ? node.labels[0].textContent : node.textContent);
    return !name.trim();
  }).map((node) => node.outerHTML.slice(0, 80))"""
AXE = """async () => {
  const found = await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]});
  return found.violations.map((v) => [v.id, v.nodes.map((n) => n.target.join(" ")).slice(0, 4)]);
}"""


@pytest.fixture(scope="module")
def browser():
    with a_browser() as browser:
        yield browser


def views(tab):
    """Goes through what the page can show, naming each."""
    page = tab.page
    yield "welcome"
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant pre")
    page.keyboard.press("F2")
    yield "answer in colours"
    page.locator("text=Edit").first.click()
    yield "edit"
    page.keyboard.press("Escape")
    page.click("#open-settings")
    yield "settings"
    page.keyboard.press("Escape")
    page.click("#tab-race")
    page.fill("#race-prompt", "Go")
    page.click("#race-start")
    page.wait_for_selector("#verdict.good")
    yield "race"
    page.click("#tab-status")
    page.wait_for_selector("#status-drafters .depths")
    yield "status"
    page.unroute("**/*")
    tab.serve(**{"/v1/chat/completions": "gone", "/v1/models": "gone"})
    page.reload()
    page.click("#tab-chat")
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")
    page.wait_for_selector(".note.error")
    yield "errors"


def opened(browser, **options):
    tab = Tab.open(browser, **options)
    tab.serve(**{"/v1/chat/completions": answer(RICH), "/v1/status": {"json": STATUS}})
    tab.page.goto(ORIGIN + "/")
    return tab


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_control_has_a_name_and_every_text_enough_contrast(browser, theme):
    tab = opened(browser, viewport=LAPTOP, color_scheme=theme)
    for view in views(tab):
        assert tab.page.evaluate(LOW_CONTRAST) == [], view
        assert tab.page.evaluate(NAMELESS) == [], view
    tab.close()


@pytest.mark.parametrize(("theme", "size"), [("light", LAPTOP), ("dark", PHONE)])
def test_axe_finds_nothing(browser, theme, size):
    source = axe_source()
    if source is None:
        pytest.skip("axe-core is not installed: pip install 'foreword[browser]'")
    tab = opened(browser, viewport=size, color_scheme=theme)
    for view in views(tab):
        tab.page.evaluate(f"() => {{ if (!window.axe) {{ {source} }} }}")
        assert tab.page.evaluate(AXE) == [], view
    tab.close()


def test_the_checks_find_what_they_are_for(browser):
    tab = opened(browser)
    tab.page.evaluate("document.querySelector('#send').style.color = '#5b6cd0'")
    assert [text for text, _ in tab.page.evaluate(LOW_CONTRAST)] == ["Send"]
    tab.page.evaluate("document.querySelector('#send').textContent = ''")
    assert len(tab.page.evaluate(NAMELESS)) == 1
    tab.close()


def test_screen_readers_hear_the_beginning_and_the_end_and_not_each_token(browser):
    tab = opened(browser)
    tab.page.evaluate(
        """() => {
          window.heard = [];
          const told = (records) => records.forEach((r) => heard.push(r.target.textContent));
          for (const live of document.querySelectorAll("[role=status], [aria-live]"))
            new MutationObserver(told).observe(live, {childList: true, characterData: true, subtree: true});
        }"""
    )
    tab.page.fill("#prompt", "Hello")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".assistant pre")
    tab.page.wait_for_selector("#said:has-text('Answer complete')", state="attached")
    heard = tab.page.evaluate("heard")
    assert heard[0] == "The answer begins."
    assert len(heard) == 2
    tab.close()
