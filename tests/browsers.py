"""Chromium for tests and pictures, and what they ask of a page."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from selenium import webdriver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

_ANIMATED = """
return [...document.querySelectorAll('*')].filter((each) => {
  const style = getComputedStyle(each);
  return style.animationName !== 'none' || parseFloat(style.transitionDuration) > 0;
}).map((each) => each.outerHTML.slice(0, 80));
"""
_PALE = """
const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const linear = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const boxBehind = (text) => {
  const y = +text.getAttribute('y') - 4, x = +text.getAttribute('x');
  return [...text.ownerSVGElement.querySelectorAll('rect[data-key]')].find((rect) => {
    const [left, top, width, height] = ['x', 'y', 'width', 'height'].map((name) => +rect.getAttribute(name));
    return left <= x && x <= left + width && top <= y && y <= top + height;
  });
};
const behind = (each) => {
  if (each.localName === 'text') {
    const box = boxBehind(each);
    if (box) return channels(getComputedStyle(box).fill);
  }
  for (let at = each; at; at = at.parentElement) {
    const found = channels(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll('body *')].filter((each) => {
  const text = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!text || !each.checkVisibility() || each.closest('.skip')) return false;
  const style = getComputedStyle(each);
  const front = light(channels(each.localName === 'text' ? style.fill : style.color)), back = light(behind(each));
  return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05) < 4.5;
}).map((each) => each.outerHTML.slice(0, 120));
"""
_OVERFLOWING = """
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= width) return [];
return [...document.querySelectorAll('body *')].filter((each) => {
  return each.getBoundingClientRect().right > width && !each.parentElement.closest('.wide, #graph, .unseen, .skip');
}).map((each) => each.outerHTML.slice(0, 120));
"""
_NEEDS_NAME = frozenset(
    {"button", "checkbox", "combobox", "form", "heading", "image", "img", "link", "log", "region", "textbox"}
)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("there is no Chromium here (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1100,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield made
    finally:
        made.quit()


def emulate(page: Chrome, **features: str) -> None:
    """Prefer these media features, with dashes for underscores: `prefers_color_scheme="dark"`."""
    wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


def animated(page: Chrome) -> list[str]:
    """Elements that move by themselves."""
    return list(page.execute_script(_ANIMATED))


def pale(page: Chrome) -> list[str]:
    """Elements whose text stands out from what is behind it less than WCAG's AA asks for."""
    return list(page.execute_script(_PALE))


def nameless(page: Chrome) -> list[str]:
    """Elements that screen readers would read without a name, by role."""
    page.execute_cdp_cmd("Accessibility.enable", {})
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    page.execute_cdp_cmd("Accessibility.disable", {})
    visible = [node for node in nodes if not node["ignored"]]
    return [
        node["role"]["value"]
        for node in visible
        if node["role"]["value"] in _NEEDS_NAME and not node.get("name", {}).get("value")
    ]


def overflow(page: Chrome, width: int) -> list[str]:
    """Elements that make a page scroll sideways in a window of so many pixels; regions of tables may scroll."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        return list(page.execute_script(_OVERFLOWING))
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def foreign(page: Chrome) -> list[str]:
    """Resources that a page has loaded from elsewhere."""
    script = "return performance.getEntriesByType('resource').map((each) => each.name)"
    origin = page.execute_script("return location.origin")
    return [name for name in page.execute_script(script) if not name.startswith(f"{origin}/")]
