"""The page's Markdown, in a real browser: what it shows, that nothing a model writes becomes markup, that it ends."""

import random

import pytest

from tests.support.browser import ORIGIN, Tab, a_browser

# Source, and the HTML that it becomes.
SHOWN = {
    "plain": ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
    "emphasis": (
        "*a* **b** ***c*** ~~d~~ _e_",
        "<p><em>a</em> <strong>b</strong> <strong><em>c</em></strong> <del>d</del> <em>e</em></p>",
    ),
    "nested emphasis": ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    "no emphasis": ("2 * 3 * 4, snake_case_name, * a*, **b", "<p>2 * 3 * 4, snake_case_name, * a*, **b</p>"),
    "code": ("a `b*c*` ``d`e``", "<p>a <code>b*c*</code> <code>d`e</code></p>"),
    "open code": ("a `b", "<p>a `b</p>"),
    "escapes": (r"\*a\* \<b> \\", "<p>*a* &lt;b&gt; \\</p>"),
    "breaks": ("a  \nb\\\nc", "<p>a  <br>b<br>c</p>"),
    "headings": ("# a\n## b ##\n###### c\n#d", "<h3>a</h3><h4>b</h4><h6>c</h6><p>#d</p>"),
    "rule": ("a\n\n---\n***", "<p>a</p><hr><hr>"),
    "list": ("- a\n- b\n  c", "<ul><li>a</li><li>b\nc</li></ul>"),
    "nested list": (
        "1. a\n   - b\n   - c\n2. d",
        "<ol><li>a<ul><li>b</li><li>c</li></ul></li><li>d</li></ol>",
    ),
    "nested by two": ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
    "loose list": ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    "list that begins at 3": ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    "list after a paragraph": ("a:\n- b\n- c", "<p>a:</p><ul><li>b</li><li>c</li></ul>"),
    "a year is no list": ("in\n1984. a", "<p>in\n1984. a</p>"),
    "item with code": ("- a\n  ```\n  b\n  ```", None),
    "quote": ("> a\n> > b\nc", "<blockquote><p>a</p><blockquote><p>b\nc</p></blockquote></blockquote>"),
    "carriage returns": ("a\r\n\r\nb", "<p>a</p><p>b</p>"),
    "tags": (
        "<b>a</b> &amp; <script>x</script>",
        "<p>&lt;b&gt;a&lt;/b&gt; &amp;amp; &lt;script&gt;x&lt;/script&gt;</p>",
    ),
    "nothing": ("", ""),
}
LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'
LINKS = {
    "[a *b*](https://x.y/z?q=1#f)": LINK.format("https://x.y/z?q=1#f", "a <em>b</em>"),
    '[a](http://x.y "title")': LINK.format("http://x.y", "a"),
    "[a](https://x.y/(b))": LINK.format("https://x.y/(b)", "a"),
    "<https://x.y/z>": LINK.format("https://x.y/z", "https://x.y/z"),
    "(https://x.y/z).": "(" + LINK.format("https://x.y/z", "https://x.y/z") + ").",
    "[a](mailto:b@c.d)": LINK.format("mailto:b@c.d", "a"),
    "![a](https://x.y/p.png)": LINK.format("https://x.y/p.png", "a"),
    "[a](javascript:alert(1))": "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))": "[a](JaVaScRiPt:alert(1))",
    "[a](data:text/html,x)": "[a](data:text/html,x)",
    "[a](//x.y)": "[a](//x.y)",
    "[a](/settings)": "[a](/settings)",
    "[a] (https://x.y)": "[a] (" + LINK.format("https://x.y", "https://x.y") + ")",
    "[a](https://x.y": "[a](" + LINK.format("https://x.y", "https://x.y"),
}
HOSTILE = [
    "<img src=x onerror=hacked()>",
    "<script>hacked()</script>",
    "<svg/onload=hacked()>",
    '[a](https://x.y/"onmouseover="hacked())',
    '[a](https://x.y "\\" onclick=hacked() x=\\"")',
    "[a](javascript&colon;hacked())",
    "[a](java\nscript:hacked())",
    "[a](\x01javascript:hacked())",
    "[<img src=x onerror=hacked()>](https://x.y)",
    "<https://x.y/'onclick='hacked()>",
    "![x](https://x.y/a.png\" onerror=\"hacked())",
    "```<img src=x onerror=hacked()>\n<script>hacked()</script>\n```",
    "```\"><script>hacked()</script>\nx\n```",
    "| <img src=x onerror=hacked()> |\n|---|\n| <iframe srcdoc='<script>parent.hacked()</script>'> |",
    "> # <base href=//evil.test>\n- <form action=//evil.test><button>x</button></form>",
    "&lt;script&gt;hacked()&lt;/script&gt;",
    "<style>@import '//evil.test'</style><link rel=stylesheet href=//evil.test><meta http-equiv=refresh content='0;//evil.test'>",
    "**<object data=javascript:hacked()>** `<embed src=x>`",
]  # fmt: skip
TAGS = "A BLOCKQUOTE BR BUTTON CODE DEL DIV EM H3 H4 H5 H6 HR LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL"
ATTRIBUTES = ["href", "target", "rel", "class", "type", "tabindex", "role", "aria-label", "start"]
LONG = {
    "open emphasis": "*a " * 5000,
    "odd marks": "**a *b _c ~~d " * 2000,
    "open brackets": "[" * 20_000,
    "brackets in pairs": "[a](" * 5000,
    "backticks": "".join("`" * (k % 50 + 1) + "a" for k in range(5000)),
    "deep quotes": ">" * 5000 + " a",
    "deep lists": "".join("  " * k + "- a\n" for k in range(300)),
    "marks of one line": "- " * 5000 + "a",
    "wide table": "|" * 3000 + "\n" + "|".join(["-"] * 3000),
    "urls": "https://x.y/" + "(" * 5000,
    "link of many parts": "[a](" + "x" * 20_000,
    "stars": "*" * 20_000,
    "long paragraph": "word `code` **bold** [a](https://x.y) " * 1500,
}
RENDER = """(text) => {
  const box = document.createElement("div");
  modules["markdown.js"].renderMarkdown(box, text);
  return box.innerHTML;
}"""


@pytest.fixture(scope="module")
def tab():
    with a_browser() as browser:
        tab = Tab.open(browser)
        tab.serve()
        tab.page.goto(ORIGIN + "/")
        tab.page.evaluate("() => { window.hacked = () => (window.wasHacked = true); }")
        yield tab
        assert tab.problems == []


@pytest.mark.parametrize("name", [name for name, (_, html) in SHOWN.items() if html is not None])
def test_markdown_becomes(tab, name):
    source, html = SHOWN[name]
    assert tab.page.evaluate(RENDER, source) == html


@pytest.mark.parametrize("source", LINKS)
def test_links_lead_to_the_web_alone(tab, source):
    assert tab.page.evaluate(RENDER, source) == f"<p>{LINKS[source]}</p>"


def test_code_blocks_keep_every_character_and_can_be_copied(tab):
    text = "```python\ndef f(x):\n\n    return x  # <b> *a*\n```\nafter"
    shown = tab.page.evaluate(
        """(text) => {
          const box = document.createElement("div");
          modules["markdown.js"].renderMarkdown(box, text);
          return [box.querySelector("pre").textContent, box.querySelector(".code-head").textContent, box.lastChild.textContent];
        }""",
        text,
    )
    assert shown == ["def f(x):\n\n    return x  # <b> *a*", "pythonCopy", "after"]
    assert "a\nb" in tab.page.evaluate(RENDER, "~~~\na\nb")  # while it streams it has no end yet


def test_tables(tab):
    html = tab.page.evaluate(RENDER, "| a | b |\n|:--|--:|\n| `x|y` | \\| |\n| c |\n\nafter")
    assert html.count("<tr>") == 3
    assert '<th class="to-left">a</th><th class="to-right">b</th>' in html
    assert '<td class="to-left"><code>x|y</code></td><td class="to-right">|</td>' in html
    assert '<td class="to-left">c</td><td class="to-right"></td>' in html
    assert html.endswith("<p>after</p>")
    assert "<table" not in tab.page.evaluate(RENDER, "a | b\nc | d")


@pytest.mark.parametrize("source", HOSTILE)
def test_what_a_model_writes_is_never_markup(tab, source):
    check = """([text, tags, attributes]) => {
      const box = document.body.appendChild(document.createElement("div"));
      modules["markdown.js"].renderMarkdown(box, text);
      const nodes = [...box.querySelectorAll("*")];
      const wrong = nodes.filter((node) => !tags.split(' ').includes(node.tagName)).map((node) => node.tagName);
      for (const node of nodes) {
        for (const { name } of node.attributes) if (!attributes.includes(name)) wrong.push(name);
        if (node.tagName === "A" && !/^(https?|mailto):$/.test(node.protocol)) wrong.push(node.href);
      }
      for (const node of nodes) if (node.matches(".code, pre, code, a, span")) node.dispatchEvent(new Event("mouseover"));
      box.remove();
      return wrong;
    }"""
    assert tab.page.evaluate(check, [source, TAGS, ATTRIBUTES]) == []
    assert tab.page.evaluate("window.wasHacked") is None


@pytest.mark.parametrize("name", LONG)
def test_it_ends(tab, name):
    """Work that grows with the square of these lengths, or recursion as deep as they are, ends the test by its time limit
    or by an error."""
    assert tab.page.evaluate(RENDER, LONG[name])


PARTS = [
    "*", "**", "_", "`", "```\n", "\n", "\n\n", "- ", "1. ", "> ", "# ", "|", "|---|\n", "[a](https://b.c)", "a",
    "é世😀", " ", "  ", "\\", "<b>", "~~", "word",
]  # fmt: skip


def test_colours_change_no_letter_and_each_piece_belongs_to_its_token(tab):
    rng = random.Random(5)
    cases = []
    for _ in range(400):
        tokens = ["".join(rng.choices(PARTS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 25))]
        cases.append([{"text": text, "drafter": f"by {k}"} for k, text in enumerate(tokens)])
    check = """(cases) => cases.map((tokens) => {
      const text = tokens.map((token) => token.text).join("");
      const [plain, painted] = [document.createElement("div"), document.createElement("div")];
      modules["markdown.js"].renderMarkdown(plain, text);
      modules["markdown.js"].renderMarkdown(painted, text, modules["paint.js"].tokenPaint(text, tokens));
      const spans = [...painted.querySelectorAll(".token")];
      const wrong = spans.filter((span) => {
        const number = Number(span.title.slice("proposed by by ".length));
        const bare = (s) => s.replaceAll(" ", ""); // indentation goes
        return !bare(tokens[number].text).includes(bare(span.textContent));
      });
      const order = spans.map((span) => Number(span.title.slice("proposed by by ".length)));
      const isSorted = order.every((number, k) => k === 0 || number >= order[k - 1]);
      for (const span of spans) span.replaceWith(...span.childNodes);
      painted.normalize();
      plain.normalize();
      return [text, wrong.length, isSorted, plain.innerHTML === painted.innerHTML];
    }).filter(([, wrong, isSorted, isSame]) => wrong || !isSorted || !isSame)"""
    assert tab.page.evaluate(check, cases) == []


def test_tokens_of_another_text_colour_nothing(tab):
    check = """() => {
      const box = document.createElement("div");
      const paint = modules["paint.js"].tokenPaint("abc", [{text: "xyz", drafter: "suffix"}]);
      modules["markdown.js"].renderMarkdown(box, "abc", paint);
      return box.innerHTML;
    }"""
    assert tab.page.evaluate(check) == "<p>abc</p>"


def test_a_growing_answer_ends_as_if_it_had_come_at_once(tab):
    source = "# Title\n\n- a\n- b **c**\n\n```js\nlet x = 1;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\nlast *word*"
    check = """(text) => {
      const box = document.createElement("div");
      const view = new modules["markdown.js"].MarkdownView(box);
      for (let end = 0; end <= text.length; end += 3) view.show(text.slice(0, end), undefined, false);
      const first = box.firstChild;
      view.show(text);
      return [box.innerHTML, first === box.firstChild];
    }"""
    html, kept = tab.page.evaluate(check, source)
    assert html == tab.page.evaluate(RENDER, source)
    assert kept, "what had not changed was made anew"
