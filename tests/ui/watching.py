"""A page with its console output, errors, layout shifts and axe-core's findings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Error, Page, ViewportSize, expect

WIDE: ViewportSize = {"width": 1600, "height": 1000}
NARROW: ViewportSize = {"width": 390, "height": 844}
ONE_DIGIT = 1e-5
JUMPS = """
window.jumps = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const jumped = (source) => source.node && (source.node.outerHTML || source.node.textContent).slice(0, 200);
    window.jumps.push([entry.value, ...entry.sources.map(jumped)]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""


class Watched:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.trouble: list[str] = []
        self.expected: tuple[str, ...] = ()
        page.on("console", self._logged)
        page.on("pageerror", self._broke)

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.trouble.append(message.text)

    def _broke(self, error: Error) -> None:
        self.trouble.append(str(error))

    def check(self) -> None:
        unexpected = [each for each in self.trouble if not any(part in each for part in self.expected)]
        assert not unexpected, unexpected

    async def live(self) -> None:
        await expect(self.page.locator("[data-live-text]")).to_have_text("Live", timeout=15_000)
        await self.page.wait_for_selector("main:not([aria-busy]) h1")

    async def jumps(self) -> list[Any]:
        """Return which elements moved without user input, and by how much. A number that gets another digit does not count."""
        found: list[Any] = await self.page.evaluate("window.jumps")
        return [jump for jump in found if jump[0] > ONE_DIGIT]

    async def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(
            await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    async def faults(self) -> list[str]:
        found = await Axe().run(self.page)
        faults: list[Any] = found.response["violations"]
        return [f"{fault['id']}: {node['html'][:200]}" for fault in faults for node in fault["nodes"]]


@asynccontextmanager
async def watched(browser: Browser, *, wide: bool = True, dark: bool = False, **more: Any) -> AsyncIterator[Watched]:
    # Without animations screenshots are reproducible, and axe sees the final colours.
    context = await browser.new_context(
        viewport=WIDE if wide else NARROW, color_scheme="dark" if dark else "light", reduced_motion="reduce", **more
    )
    try:
        page = await context.new_page()
        await page.add_init_script(JUMPS)
        page.set_default_timeout(15_000)
        yield Watched(page)
    finally:
        await context.close()
