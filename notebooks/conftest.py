"""How pytest compares a notebook: pictures and the error stream are not compared, numbers and text are, after sanitising."""

from pathlib import Path

NOT_COMPARED = (
    "text/html",
    "application/javascript",
    "image/svg+xml",
    "application/vnd.holoviews_load.v0+json",
    "application/vnd.holoviews_exec.v0+json",
    "stderr",
)


def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):  # nbval's notebook collector
        from nbval.plugin import get_sanitize_patterns

        collector.skip_compare += NOT_COMPARED
        collector.sanitize_patterns.update(get_sanitize_patterns((Path(__file__).parent / "sanitize.cfg").read_text()))
