"""Each view of `groundling ui`, tested in a real browser: Debian's Chromium, headless."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from groundling.reports.page import write_report
from tests.rehearsal.paths import HAS_NETHACK
from tests.thorough import thorough

webdriver = pytest.importorskip("selenium.webdriver")
pytest.importorskip("groundling.reports.ui.app")
if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("there is no chromium with its chromedriver: apt-get install chromium-driver", allow_module_level=True)

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

_SECONDS = 60


@pytest.fixture(scope="module")
def address(roots: list[Path]) -> Iterator[str]:
    command = [sys.executable, "-m", "groundling", "ui", *map(str, roots)]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert served.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", served.stdout.readline())
        assert found
        yield found.group()
    finally:
        served.terminate()
        served.wait(30)


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator:
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(_SECONDS)
    driver.get(address)
    assert "token" not in driver.current_url
    yield driver
    driver.quit()


@pytest.fixture
def until(browser) -> Iterator[Callable]:
    """Wait for the result of a function of the browser; afterwards, the page must have no errors."""
    yield lambda wanted: WebDriverWait(browser, _SECONDS).until(wanted)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def _at(browser, place: str) -> str:
    return "/".join(browser.current_url.split("/")[:3]) + place


def _shown(browser) -> list[str]:
    """Return the ids of the visible runs, from top to bottom."""
    links = browser.find_elements(By.CSS_SELECTOR, '#runs td a[href^="/run"]')
    return [link.text.partition("/")[2] for link in links if link.is_displayed()]


def test_runs_are_searched_filtered_and_sorted(browser, until) -> None:
    browser.get(_at(browser, "/"))
    everything = _shown(browser)
    search = browser.find_element(By.CSS_SELECTOR, "#runs input[type=search]")
    search.send_keys("dummy ppo")
    until(lambda b: _shown(b) == ["writer"])
    assert browser.find_element(By.CSS_SELECTOR, "#runs output").text == f"1 of {len(everything)}"
    browser.refresh()  # the search is part of the address
    assert _shown(browser) == ["writer"]
    search = browser.find_element(By.CSS_SELECTOR, "#runs input[type=search]")
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.DELETE)
    until(lambda b: len(_shown(b)) == len(everything))
    Select(browser.find_element(By.NAME, "runs.policy")).select_by_visible_text("action_scoring")
    until(lambda b: _shown(b) == ["reader"])
    browser.find_element(By.CSS_SELECTOR, 'input[value="runs/reader"]').click()
    Select(browser.find_element(By.NAME, "runs.policy")).select_by_visible_text("token")
    until(lambda b: set(_shown(b)) == {"reader", "writer"})  # a selected run stays visible
    Select(browser.find_element(By.NAME, "runs.policy")).select_by_visible_text("all")
    for order in (sorted(everything), sorted(everything, reverse=True)):
        browser.find_element(By.XPATH, '//div[@id="runs"]//th/button[text()="run"]').click()
        until(lambda b, order=order: _shown(b) == order)


def _plots(browser) -> list:
    return browser.find_elements(By.CSS_SELECTOR, "#plots .plot svg.main-svg")


def test_runs_are_chosen_and_compared(browser, until) -> None:
    browser.get(_at(browser, "/"))
    for id in ("runs/reader", "runs/writer"):
        browser.find_element(By.CSS_SELECTOR, f'input[value="{id}"]').click()
    browser.find_element(By.CSS_SELECTOR, "form > p > button").click()
    until(_plots)
    assert "runs/reader" in browser.page_source and "Trained agents: held-out" in browser.page_source


@pytest.mark.parametrize("run", ["reader", "writer", *(thorough("player") if HAS_NETHACK else [])])
def test_a_run_of_each_role_is_shown(browser, until, run: str) -> None:
    browser.get(_at(browser, "/"))
    browser.find_element(By.LINK_TEXT, f"runs/{run}").click()
    until(_plots)
    before = len(browser.find_elements(By.CLASS_NAME, "plot"))
    more = Select(browser.find_element(By.ID, "more"))
    more.select_by_index(len(more.options) - 1)
    until(lambda b: len(b.find_elements(By.CLASS_NAME, "plot")) == before + 1)
    text = browser.find_element(By.TAG_NAME, "main").text
    assert "Evaluations" in text and ("Episodes" in text or "Texts" in text)


def test_an_episode_is_played_back(browser, until) -> None:
    browser.get(_at(browser, "/run?id=runs/reader"))
    browser.find_element(By.CSS_SELECTOR, 'a[href^="/episode"]').click()
    until(lambda b: b.find_element(By.ID, "picture").get_attribute("src"))

    def position() -> str:
        return browser.find_element(By.ID, "position").text

    assert position().startswith("step 1 of ")
    prompts = {browser.find_element(By.ID, "prompt").text}
    bars = browser.find_elements(By.CSS_SELECTOR, ".bar")
    assert len(bars) == 6 and len(browser.find_elements(By.CSS_SELECTOR, ".bar.chosen")) == 1
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)
    assert position().startswith("step 2 of ")
    prompts.add(browser.find_element(By.ID, "prompt").text)
    browser.find_element(By.ID, "back").click()
    assert position().startswith("step 1 of ") and all("Goal:" in prompt for prompt in prompts)
    browser.find_element(By.ID, "play").click()
    until(lambda b: not position().startswith("step 1 "))
    browser.find_element(By.ID, "play").click()


def test_judges_are_filtered(browser, until) -> None:
    browser.get(_at(browser, "/judge?id=data/pairs"))
    for name, value in (("judge", "returns"), ("against", "chance")):
        Select(browser.find_element(By.NAME, name)).select_by_visible_text(value)
    browser.find_element(By.CSS_SELECTOR, ".filters button").click()
    until(lambda b: "against=chance" in b.current_url)
    for article in browser.find_elements(By.TAG_NAME, "article"):
        said = dict(re.findall(r"(chance|returns): (\w+)", article.text))
        assert said["chance"] != said["returns"]


def test_a_study_is_shown(browser, until) -> None:
    browser.get(_at(browser, "/"))
    browser.find_element(By.LINK_TEXT, "results/made").click()
    until(lambda b: b.execute_script("return document.querySelector('article img').naturalWidth") == 9)
    assert "ones" in browser.find_element(By.CSS_SELECTOR, "article table").text


_PLACES = [
    *("/", "/run?id=runs/reader", "/run?id=runs/writer", "/compare?run=runs/reader&run=runs/writer"),
    *("/episode?id=runs/reader&suite=held-out&number=0", "/judge?id=data/pairs", "/study?id=results/made"),
]


@pytest.mark.parametrize("place", [*_PLACES, "report"])
def test_a_phone_need_not_scroll_sideways(
    browser, until, address: str, roots: list[Path], tmp_path: Path, place: str
) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        report = tmp_path / "report.html"
        if place == "report":
            write_report([roots[0] / "reader", roots[0] / "writer"], report)
        browser.get(report.as_uri() if place == "report" else _at(browser, place))
        # the driver may return before the stylesheet applies
        until(lambda b: b.execute_script("return document.styleSheets.length"))
        until(lambda b: b.execute_script("return document.documentElement.scrollWidth") <= 390)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.get(address)  # leave the file, whose address `_at` would extend
