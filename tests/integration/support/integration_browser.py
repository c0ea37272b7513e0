"""A real browser without a screen: headless Chromium, driven by Debian's own chromedriver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from integration_debian import program
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

_DEADLINE_S = 30.0


class Browser:
    """One window. Elements are named by CSS selectors."""

    def __init__(self, chrome: Chrome) -> None:
        self.chrome = chrome

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that there are, at one moment: a page may replace its elements at any."""
        find = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText ?? each.textContent)"
        found: list[str] = self.chrome.execute_script(find, selector)
        return found

    def until(self, condition: Callable[[], Any], what: str, deadline_s: float = _DEADLINE_S) -> Any:
        """The first truthy value of `condition`; fails the test, and says what the page shows, when there is none."""
        deadline = time.monotonic() + deadline_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"not within {deadline_s:g} s: {what}; the page says: {self.texts('body')}")
            time.sleep(0.1)
        return value

    def run(self, script: str) -> Any:
        return self.chrome.execute_script(script)

    def command(self, name: str, **parameters: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self.chrome.execute_cdp_cmd(name, parameters)

    def complaints(self) -> list[str]:
        """What the console says since this was last asked: errors, and what the policy has refused."""
        return [each["message"] for each in self.chrome.get_log("browser")]


@contextmanager
def browser(width: int = 1200, height: int = 1500) -> Iterator[Browser]:
    options = ChromeOptions()
    options.binary_location = program("chromium", "chromium")
    service = ChromeService(executable_path=program("chromedriver", "chromium-driver"))
    for argument in (
        "--headless=new",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        f"--window-size={width},{height}",
    ):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has none for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=service)
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()
