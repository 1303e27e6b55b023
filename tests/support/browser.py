"""A real browser for tests: Debian's Chromium, driven by Playwright's Python package. Tests skip where either is missing."""

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from foreword.server.page.bundle import page as the_page
from tests.support.answers import STATUS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ORIGIN = "http://page.test"
LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 780}


@contextmanager
def a_browser() -> Iterator[Any]:
    """For a fixture of one module: while it is open this thread has an event loop of Playwright's own."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("the Python package playwright is not installed: pip install 'foreword[browser]'")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Tab:
    """A page of a browser, and all that went wrong in it."""

    page: Any
    problems: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, browser: Any, **options: Any) -> "Tab":
        """In a context of its own: nothing stored, no cookies."""
        context = browser.new_context(**{"viewport": LAPTOP, "locale": "en-GB"} | options)
        context.set_default_timeout(20_000)
        tab = cls(context.new_page())
        tab.page.on("pageerror", lambda error: tab.problems.append(f"error: {error}"))
        tab.page.on("console", lambda message: tab.problems.append(f"{message.type}: {message.text}"))
        return tab

    def serve(self, **answers: Any) -> None:
        """The page at `ORIGIN`, without a server: what a path is answered with, as `route.fulfill` takes it."""
        made = the_page()
        html = {"body": made.html, "content_type": "text/html", "headers": {"Content-Security-Policy": made.policy}}
        known = {"/": html, "/v1/models": {"json": {"data": [{"id": "toy"}]}}, "/v1/status": {"json": STATUS}} | answers

        def answer(route: Any) -> None:
            made = known.get(route.request.url.removeprefix(ORIGIN).partition("#")[0])
            if made is None:
                route.fulfill(status=404, json={"error": {"message": f"no such path: {route.request.url}"}})
            elif made == "gone":
                route.abort("connectionrefused")
            else:
                route.fulfill(**(made(route) if callable(made) else made))

        self.page.route("**/*", answer)

    def close(self) -> None:
        self.page.context.close()


def axe_source() -> str | None:
    """The text of axe-core, an accessibility checker, where the package that brings it is installed."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        return None
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")
