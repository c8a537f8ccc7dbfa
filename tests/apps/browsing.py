"""What every browser test does on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG = 180_000  # milliseconds; a busy machine, not a claim about speed


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("menuitem", name=option, exact=True).click()
