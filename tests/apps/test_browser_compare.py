"""The *Compare* page in Chromium: the whole road, cancel, errors as text, the report offline, two visitors at once."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright.sync_api")

from browsing import LONG, choose
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser

def align(page: Page, anchor: str, moving: str) -> None:
    choose(page, "Anchor", anchor)
    choose(page, "Moving", moving)
    page.get_by_role("button", name="Align").click()


def titles(page: Page) -> list[str]:
    """Titles of the figures in the page."""
    return page.evaluate("() => [...Bokeh.documents[0]._all_models.values()].filter(m => m.type === 'Title').map(m => m.text)")


def test_the_whole_road(visit):
    page = visit()
    expect(page.get_by_role("heading", name="Are two trained networks")).to_be_visible()
    align(page, "shipped: digits-mlp-w64-seed0", "shipped: digits-mlp-w64-seed1")
    expect(page.get_by_text(re.compile("Finished in"))).to_be_visible(timeout=LONG)
    main = page.get_by_role("main")
    for text in (
        "local optimum after",
        "2 factors of 64, 64 units; proved by test",
        "outputs differ by",
        "“linear”, 25 points",
        "Loss barrier, train",
    ):
        expect(main.get_by_text(text).first).to_be_visible()
    page.wait_for_function("() => [...Bokeh.documents[0]._all_models.values()].filter(m => m.type === 'Title').length >= 6")
    shown = "\n".join(titles(page))
    for text in ("Loss along", "units moved", "objective", "Agreement of singular", "Singular values", "Barrier"):
        assert text in shown

    # factor by factor: one switch off, and its barrier joins the table
    page.get_by_role("checkbox", name="layers.1").click()
    expect(main.get_by_role("cell", name="layers.0", exact=True)).to_be_visible()
    expect(main.get_by_role("cell", name="partial")).to_be_visible()

    # the slider: the numbers are those of the new t
    page.locator("main input[type=range]").focus()
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    expect(main.get_by_text("t = 0.40")).to_be_visible()


def until_listed(page: Page, *names: str, gone: tuple[str, ...] = ()) -> None:
    """Wait until the legend holds all of ``names`` and none of ``gone``."""
    page.wait_for_function(
        """([names, gone]) => {
            const shown = [...Bokeh.documents[0]._all_models.values()].filter(m => m.type === 'LegendItem').map(m => m.label.value);
            return names.every(n => shown.includes(n)) && !gone.some(n => shown.includes(n));
        }""",
        arg=[list(names), list(gone)],
        timeout=LONG,
    )


def row(page: Page, label: str) -> Locator:
    """The line of one alignment in the table."""
    return page.get_by_role("main").get_by_role("row").filter(has=page.get_by_role("cell", name=label, exact=True))


def test_a_matcher_has_a_form_and_a_wrong_value_is_explained_beside_it(visit):
    page = visit()
    expect(page.get_by_text("no data used")).to_be_visible()
    choose(page, "Matcher", "straight-through")
    expect(page.get_by_text("labelled examples")).to_be_visible()
    choose(page, "Matcher", "identity")
    expect(page.get_by_role("button", name="Settings of")).to_have_count(0)
    choose(page, "Matcher", "spectral")
    page.get_by_role("button", name="Settings of spectral").click()
    for label in ("energy", "restarts", "tolerance"):
        expect(page.get_by_label(label, exact=True)).to_be_visible()
    expect(page.get_by_role("checkbox", name="include_biases")).to_be_visible()
    expect(page.get_by_role("combobox", name="order")).to_be_visible()
    rank = page.get_by_label("rank", exact=True)
    rank.fill("-1")
    rank.press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("rank ≥ 0")
    align(page, "small-seed0.safetensors", "small-seed1.safetensors")
    expect(page.get_by_role("alert")).to_have_count(2)  # beside the form and below the button
    expect(rank).to_have_value("-1")
    rank.fill("3")
    rank.press("Enter")
    expect(page.get_by_text("rank=3. Looks at the weights alone")).to_be_visible()
    page.get_by_role("button", name="Align").click()
    expect(page.get_by_text(re.compile("Finished in"))).to_be_visible(timeout=LONG)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("matcher spectral, rank=3, seed 0")).to_be_visible()


def test_two_alignments_of_a_pair_lie_side_by_side(visit):
    page = visit()
    align(page, "shipped: digits-mlp-w16-seed0", "shipped: digits-mlp-w16-seed1")
    expect(row(page, "1 · weights")).to_be_visible(timeout=LONG)
    choose(page, "Matcher", "activations")
    page.get_by_role("button", name="Align").click()
    expect(row(page, "2 · activations")).to_be_visible(timeout=LONG)
    expect(row(page, "1 · weights")).to_contain_text("no data used")
    expect(row(page, "2 · activations")).to_contain_text("1400 examples of digits/train")
    until_listed(page, "naive, train", "1 · weights, test", "2 · activations, train")
    # the other one is shown, and the first says no more what it is not
    choose(page, "Shown in the figures", "1 · weights")
    expect(page.get_by_text("matcher weights, seed 0")).to_be_visible(timeout=LONG)
    expect(page.get_by_text("Shown: 1 · weights.")).to_be_visible()
    page.get_by_role("checkbox", name="2 · activations").click()
    until_listed(page, "naive, train", "1 · weights, train", gone=("2 · activations, train",))
    page.get_by_role("button", name="Remove").click()
    expect(row(page, "1 · weights")).to_have_count(0, timeout=LONG)
    expect(page.get_by_text("matcher activations, seed 0")).to_be_visible(timeout=LONG)
    # another pair begins anew
    align(page, "small-seed0.safetensors", "small-seed1.safetensors")
    expect(row(page, "1 · activations")).to_be_visible(timeout=LONG)
    expect(row(page, "2 · activations")).to_have_count(0)


def test_the_report_opens_without_a_network(visit, chromium, tmp_path):
    page = visit()
    align(page, "small-seed0.safetensors", "small-seed1.safetensors")
    expect(page.get_by_text(re.compile("Finished in"))).to_be_visible(timeout=LONG)
    page.get_by_role("button", name="Report").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Report").click()
    target = tmp_path / "report.html"
    download.value.save_as(target)
    context = chromium.new_context(offline=True)
    asked = []
    context.on("request", lambda request: asked.append(request.url))
    report = context.new_page()
    report.goto(target.as_uri())
    report.wait_for_function("() => window.Bokeh && Bokeh.documents.length > 0")
    expect(report.get_by_role("heading", level=1)).to_contain_text("small-seed1.safetensors against small-seed0.safetensors")
    assert report.locator(".bk-Figure, figure").count() >= 6
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def test_cancel_keeps_the_best_so_far_and_says_so(visit):
    page = visit()
    align(page, "wide-seed0.safetensors", "wide-seed1.safetensors")
    expect(page.get_by_text(re.compile("Matching: sweep"))).to_be_visible(timeout=LONG)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("The best alignment found so far is kept")).to_be_visible(timeout=LONG)
    expect(page.get_by_text("best so far, not converged")).to_be_visible()
    expect(page.get_by_role("button", name="Report")).to_be_disabled()
    # and the next comparison is right
    align(page, "small-seed0.safetensors", "small-seed1.safetensors")
    expect(page.get_by_text(re.compile("Finished in"))).to_be_visible(timeout=LONG)
    expect(page.get_by_text("small-seed1.safetensors moved onto small-seed0.safetensors")).to_be_visible()


def test_continue_after_cancel(visit):
    page = visit()
    points = page.get_by_label("Points on the path")
    points.fill("3")
    points.press("Enter")
    align(page, "wide-seed0.safetensors", "wide-seed1.safetensors")
    expect(page.get_by_text(re.compile("Matching: sweep"))).to_be_visible(timeout=LONG)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text(re.compile("Finished in"))).to_be_visible(timeout=LONG)
    expect(page.get_by_text("best so far, not converged")).to_be_visible()
    expect(page.get_by_text("“linear”, 3 points").first).to_be_visible()


def test_errors_are_text(visit):
    page = visit()
    align(page, "small-seed0.safetensors", "other-width.safetensors")
    expect(page.get_by_text("The two checkpoints are of different architectures")).to_be_visible(timeout=LONG)
    align(page, "broken.pt", "small-seed0.safetensors")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("broken.pt is a web page")
    assert "Traceback" not in alert.inner_text()
    assert "/" not in alert.inner_text()  # where the file lies is the operator's business


def test_two_visitors_get_their_own_results(visit):
    first, second, idle = visit(), visit(), visit()
    align(second, "small-seed0.safetensors", "small-seed1.safetensors")
    align(first, "wide-seed0.safetensors", "wide-seed1.safetensors")
    expect(first.get_by_text(re.compile("Matching: sweep"))).to_be_visible(timeout=LONG)
    first.get_by_role("button", name="Cancel").click()
    expect(idle.get_by_role("button", name="Cancel")).to_be_disabled()
    expect(first.get_by_text("The best alignment found so far is kept")).to_be_visible(timeout=LONG)
    # the other visitor's work went on
    expect(second.get_by_text(re.compile("Finished in"))).to_be_visible(timeout=LONG)
    expect(second.get_by_text("small-seed1.safetensors moved onto small-seed0.safetensors")).to_be_visible()
    expect(first.get_by_text("wide-seed1.safetensors moved onto wide-seed0.safetensors")).to_be_visible()
    expect(idle.get_by_text("moved onto")).to_have_count(0)


def test_dark_mode_and_a_narrow_window(visit):
    page = visit(width=420)
    page.keyboard.press("Escape")  # the side bar opens over a narrow page
    page.get_by_role("button", name="Toggle theme").click()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
