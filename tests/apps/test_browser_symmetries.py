"""The *Symmetries* page in Chromium: a shipped network, its graph and reasons, elements kept and broken, cancel, errors as text."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright.sync_api")

from browsing import LONG, choose
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

def symmetries(page: Page) -> Page:
    page.get_by_role("banner").get_by_role("button", name="Symmetries").click()
    expect(page.get_by_role("heading", name="Which changes of the weights")).to_be_visible()
    return page


def discover(page: Page, model: str, options: str = "") -> None:
    choose(page, "Model", model)
    if options:
        page.get_by_label("Options").fill(options)
        page.get_by_label("Options").blur()
    page.get_by_role("button", name="Discover").click()


def columns(page: Page, name: str) -> list[list[str]]:
    """The columns called ``name`` of all figures in the page, each with its values as text."""
    return page.evaluate(
        "name => [...Bokeh.documents[0]._all_models.values()].filter(m => m.type === 'ColumnDataSource' && m.data[name])"
        ".map(m => [...m.data[name]].map(String))",
        name,
    )


def largest_difference(page: Page, verdict: str) -> float:
    """The number in the box whose name is ``verdict``."""
    box = page.locator(".fact", has=page.get_by_text(verdict, exact=True))
    expect(box).to_be_visible(timeout=LONG)
    return float(box.locator(".value").inner_text())


def test_a_shipped_network_is_shown_explained_kept_and_broken(visit):
    page = symmetries(visit())
    assert page.url.endswith("page=symmetries")
    discover(page, "shipped: digits-convnet-seed0")
    expect(page.get_by_text(re.compile("Discovered and proved in"))).to_be_visible(timeout=LONG)
    main = page.get_by_role("main")
    for text in ("3 factors", "3 random elements in float64", "every operation of the graph is understood"):
        expect(main.get_by_text(text).first).to_be_visible()
    for factor in ("convs.0", "convs.1", "convs.2"):
        expect(main.get_by_role("cell", name=factor, exact=True)).to_be_visible()
    expect(main.get_by_text("positions under a kernel are ordered").first).to_be_visible()

    # the graph: every factor has an edge to what it moves, and what stays has its reason at hand
    title = "m => m.type === 'Title' && m.text.includes('17 tensors')"
    page.wait_for_function(f"() => [...Bokeh.documents[0]._all_models.values()].some({title})")
    edges = {tuple(pair) for pair in zip(*(columns(page, name)[0] for name in ("factor", "axis")), strict=False)}
    assert any(factor.startswith("convs") for factor, _ in edges)
    assert any("positions under a kernel are ordered" in reason for column in columns(page, "reason") for reason in column)

    # a random element keeps the outputs, drawn at once and again
    assert largest_difference(page, "The function is the same") < 1e-9
    page.get_by_role("button", name="Apply a random element").click()
    expect(main.get_by_text("Element of seed 1")).to_be_visible(timeout=LONG)
    assert largest_difference(page, "The function is the same") < 1e-9

    # a part of an element does not
    page.get_by_role("button", name="Break it").click()
    assert largest_difference(page, "The function is broken") > 1

    # the chain of reasons of one factor
    choose(page, "Factor or tensor", "convs.1")
    expect(main.get_by_text("tied by:").first).to_be_visible()
    expect(main.get_by_text("convs.1: 32 units")).to_be_visible()


# Where a mark lies in pixels of the window: the one whose ``column`` begins with ``text``; null while the figure is not drawn.
PLACE = """([column, text]) => {
  for (const view of Bokeh.index.query(() => true)) {
    if (!view.frame || !view.renderer_views) continue;
    for (const glyph of view.renderer_views.values()) {
      const data = glyph.model?.data_source?.data;
      const i = data?.[column] ? [...data[column]].findIndex(value => String(value).startsWith(text)) : -1;
      if (i < 0 || !(data.left || data.units)) continue;
      const x = data.left ? (data.left[i] + data.right[i]) / 2 : data.across[i];
      const y = data.left ? (data.top[i] + data.bottom[i]) / 2 : data.down[i];
      const box = view.el.getBoundingClientRect();
      return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
    }
  }
  return null;
}"""


def place(page: Page, column: str, text: str) -> tuple[float, float]:
    return page.wait_for_function(PLACE, arg=[column, text]).json_value()


def test_pointing_at_a_grey_bar_says_why_and_a_click_on_a_factor_selects_it(visit):
    page = symmetries(visit(height=1200))
    discover(page, "small-seed0.safetensors")
    expect(page.get_by_text(re.compile("Discovered and proved in"))).to_be_visible(timeout=LONG)
    expect(page.get_by_text("The function is the same")).to_be_visible(timeout=LONG)
    place(page, "reason", "axis 1 of the model's input")  # drawn
    x, y = place(page, "axis", "layers.0.weight axis 1")
    told = page.locator(".bk-Tooltip").get_by_text("axis 1 of the model's input x")
    page.mouse.move(x, y - 200)
    expect(told).not_to_be_visible()
    page.mouse.move(x, y)
    expect(told).to_be_visible()

    chosen = page.get_by_role("combobox", name="Factor or tensor")
    expect(chosen).to_have_text("the whole group")
    page.mouse.click(*place(page, "units", "16"))
    expect(chosen).to_have_text("layers.0")
    expect(page.get_by_text("layers.0: 16 units")).to_be_visible()


def test_heads_of_a_built_in_transformer(visit):
    page = symmetries(visit())
    discover(page, "built-in: transformer", "width=16, heads=4, kv_heads=2, depth=1, hidden=8")
    expect(page.get_by_text(re.compile("Discovered and proved in"))).to_be_visible(timeout=LONG)
    main = page.get_by_role("main")
    expect(main.get_by_text("a copy for each unit of another").first).to_be_visible()
    expect(main.get_by_text("rotation").first).to_be_visible()  # the rotary table is what pins the units inside query heads
    assert largest_difference(page, "The function is the same") < 1e-9


def test_scales_and_signs_on_request(visit):
    page = symmetries(visit())
    box = page.get_by_label("Also scales, signs and changes of basis")
    expect(box).not_to_be_checked()
    box.check()
    discover(page, "small-seed0.safetensors")
    expect(page.get_by_text(re.compile("Discovered and proved in"))).to_be_visible(timeout=LONG)
    main = page.get_by_role("main")
    expect(main.get_by_text("positive numbers + signs that may be chosen")).to_be_visible()
    expect(main.get_by_text("Mass / least mass")).to_be_visible()
    expect(main.get_by_role("cell", name="scale of layers.0", exact=True)).to_be_visible()
    expect(main.get_by_text(re.compile(r"drawn too: \d+ scales"))).to_be_visible(timeout=LONG)
    assert largest_difference(page, "The function is the same") < 1e-9


def test_scales_of_a_built_in_are_listed_and_applied_and_gone_when_not_asked_for(visit):
    page = symmetries(visit())
    box = page.get_by_label("Also scales, signs and changes of basis")
    box.check()
    discover(page, "built-in: mlp", "width=8, depth=2")
    expect(page.get_by_text(re.compile("Discovered and proved in"))).to_be_visible(timeout=LONG)
    main = page.get_by_role("main")
    expect(main.get_by_text("each in infinitely many ways: 16 positive numbers may be chosen too")).to_be_visible()
    row = main.get_by_role("row", name="scale of layers.1")
    expect(row).to_have_count(1)
    expect(row.get_by_role("cell")).to_have_text(
        ["scale of layers.1", "8", "× s: layers.1.weight, layers.1.bias; ÷ s: layers.2.weight"]
    )
    expect(main.get_by_text("Element of seed 0")).to_be_visible(timeout=LONG)
    page.get_by_role("button", name="Apply a random element").click()
    expect(main.get_by_text(re.compile("Element of seed 1: .* drawn too: 16 scales"))).to_be_visible(timeout=LONG)
    assert largest_difference(page, "The function is the same") < 1e-9
    page.get_by_role("button", name="Break it").click()
    assert largest_difference(page, "The function is broken") > 0.01

    # not asked for, they are neither counted nor drawn
    box.uncheck()
    page.get_by_role("button", name="Discover").click()
    expect(main.get_by_text("ways: one for every order of the units below")).to_be_visible(timeout=LONG)
    expect(main.get_by_text(re.compile("Element of seed .* units moved"))).to_be_visible(timeout=LONG)
    expect(main.get_by_text("drawn too")).to_have_count(0)
    expect(main.get_by_role("cell", name="scale of layers.1", exact=True)).to_have_count(0)


def test_cancel_stops_and_the_page_goes_on(visit):
    page = symmetries(visit())
    discover(page, "built-in: resnet", "depth=56")
    expect(page.get_by_text(re.compile("Discovering the symmetry|Proving by test|Reading off"))).to_be_visible(timeout=LONG)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Nothing is claimed of a group half discovered")).to_be_visible(timeout=LONG)
    discover(page, "small-seed0.safetensors")
    expect(page.get_by_text(re.compile("Discovered and proved in"))).to_be_visible(timeout=LONG)


def test_errors_are_text(visit):
    page = symmetries(visit())
    discover(page, "built-in: mlp", "widht=4")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("did you mean 'width'", timeout=LONG)
    discover(page, "broken.pt")
    expect(alert).to_contain_text("broken.pt is a web page", timeout=LONG)
    assert "Traceback" not in alert.inner_text()
    assert "/" not in alert.inner_text()  # where the file lies is the operator's business


def test_going_back_finds_the_other_page_as_it_was(visit):
    page = visit(width=420)
    page.keyboard.press("Escape")  # the side bar opens over a narrow page
    symmetries(page)
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    page.get_by_role("button", name="Toggle theme").click()
    page.get_by_role("banner").get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="Are two trained networks")).to_be_visible()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
