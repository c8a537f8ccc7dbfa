"""Imports only point down the layers, and ``import workbench`` stays light.

Every import statement counts, also one inside a function or under ``TYPE_CHECKING``: a lazy upward import is still one.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = (
    {"errors", "progress", "registry", "schema", "options", "shipped", "disk"},
    {"states", "symmetry", "twins", "devices"},
    {"checkpoints", "tasks", "architectures", "training"},
    {"matching"},
    {"paths", "calibration", "evaluation", "profiles", "barriers"},
    {"spectra", "star", "study", "comparison", "stages", "verdict"},
    {"plots"},
    {"cli", "apps", "__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
USER_INTERFACE = {"panel", "panel_material_ui", "IPython", "ipywidgets"}
DRAWING = {"holoviews", "bokeh", "matplotlib", "hvplot", "datashader"}
HEAVY = ("holoviews", "bokeh", "matplotlib", "panel", "sklearn", "numba", "transformers", "IPython")
# The dashboard's pages; "star" is there for the negative controls below.
PAGES = {path.stem for part in ("pages", "states") for path in (ROOT / "apps" / part).glob("[!_]*.py")} | {"star"}


def modules(top: str):
    """Dotted module name -> source, for every module below the folder ``top``."""
    for path in sorted((ROOT / top).rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        yield ".".join(parts), path.read_text()


def imported(module: str, source: str, *, is_package: bool = False):
    """(line, dotted name) of every import in ``source``, relative ones resolved against ``module``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, *filter(None, [node.module])])
            # `from workbench import barriers` names a module as well as `from workbench.barriers import barrier` does
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def area(dotted: str) -> str | None:
    """The layered part a dotted name belongs to, or None for the façade ``workbench`` itself and for outside packages."""
    parts = dotted.split(".")
    if parts[:3] == ["workbench", "shipped", "apps"] or parts[0] == "apps":
        return "apps"
    return parts[1] if parts[0] == "workbench" and len(parts) > 1 and parts[1] in LEVEL else None


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """The rules of the layers that ``source`` breaks, in words."""
    here = area(module)
    found = []
    if here is None:
        return found
    for line, name in imported(module, source, is_package=is_package):
        top, there = name.split(".")[0], area(name)
        where = f"{module}:{line} imports {name}"
        if there is not None and LEVEL[there] > LEVEL[here]:
            found.append(f"{where}: {there} lies above {here}")
        if there == here == "apps" and _page(module) and _page(name) and _page(module) != _page(name):
            found.append(f"{where}: one app imports another")
        if here != "apps" and top in USER_INTERFACE:
            found.append(f"{where}: only apps may use {top}")
        if LEVEL[here] < LEVEL["plots"] and top in DRAWING:
            found.append(f"{where}: numbers never import plots")
        if top in {"torch", "safetensors", "sklearn"} and (LEVEL[here] == 0 or here in {"barriers", "plots"}):
            found.append(f"{where}: {here} works without {top}")
        if here == "matching" and there == "evaluation":
            found.append(f"{where}: matching never evaluates")
        if top == "workbench" and LEVEL[here] < LEVEL["cli"] and there is None:
            found.append(f"{where}: the façade is for users; name the module")
    return found


def _page(dotted: str) -> str | None:
    """The page of the dashboard a module of ``apps/pages`` or ``apps/states`` belongs to."""
    parts = dotted.removeprefix("workbench.shipped.").split(".")
    return parts[2] if len(parts) > 2 and parts[:2] in (["apps", "pages"], ["apps", "states"]) and parts[2] in PAGES else None


@pytest.mark.parametrize("top", ["workbench", "apps"])
def test_imports_point_down(top):
    found = []
    for module, source in modules(top):
        package = (ROOT / module.replace(".", "/")).is_dir()
        found += violations(module, source, is_package=package)
    assert not found, "\n".join(found)


def test_every_module_has_a_layer():
    names = {p.stem for p in (ROOT / "workbench").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}
    assert names <= set(LEVEL), f"no layer for {sorted(names - set(LEVEL))}"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workbench.symmetry.group", "from workbench.matching import align"),
        ("workbench.symmetry.group", "def f():\n    from workbench import matching"),
        ("workbench.matching.weights", "from workbench.evaluation import evaluate"),
        ("workbench.matching.weights", "from workbench import align"),
        ("workbench.barriers", "import torch"),
        ("workbench.plots.profile", "import torch.nn"),
        ("workbench.errors", "import torch"),
        ("workbench.spectra", "import holoviews as hv"),
        ("workbench.plots.profile", "import panel as pn"),
        ("workbench.states", "from .matching import align"),
        ("apps.pages.compare", "from workbench.shipped.apps.pages import star"),
        ("apps.pages.compare", "from .star import Star"),
        ("workbench.cli.serve", "import panel"),
    ],
)
def test_the_rules_can_fail(module, source):
    """The negative control: each of these breaks one rule and must be seen."""
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workbench.matching.weights", "from workbench.symmetry import Symmetry\nimport torch"),
        ("workbench.comparison", "from workbench.matching import align"),
        ("apps.pages.compare", "from ..states.compare import CompareState\nimport panel"),
        ("workbench.cli.serve", "from workbench.shipped.apps.server import serve"),
    ],
)
def test_downward_imports_pass(module, source):
    assert not violations(module, source)


def test_workbench_never_imports_relatively():
    found = [
        f"{module}:{node.lineno}"
        for module, source in modules("workbench")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not found, f"relative imports: {found}"


def _pulled_in(code: str, names) -> list[str]:
    script = f"{code}\nimport sys\nprint([n for n in {tuple(names)!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), cwd=ROOT, check=True
    )
    return ast.literal_eval(done.stdout)


def test_import_workbench_is_light():
    assert _pulled_in("import workbench", HEAVY) == []
    assert _pulled_in("import json", ("json",)) == ["json"], "the probe must see what is imported"


# The package without its façade, which is for users and imports torch: what a module needs by itself.
BARE = (
    f"import sys, types; w = types.ModuleType('workbench'); w.__path__ = [{str(ROOT / 'workbench')!r}]; "
    "sys.modules['workbench'] = w"
)


@pytest.mark.parametrize("module", ["errors", "progress", "registry", "schema", "options", "barriers", "plots", "cli"])
def test_works_without_torch(module):
    assert _pulled_in(f"{BARE}; import workbench.{module}", ("torch",)) == []


def test_without_torch_can_fail():
    assert _pulled_in(f"{BARE}; import workbench.states", ("torch",)) == ["torch"]


def test_a_command_line_is_parsed_before_anything_heavy_is_imported():
    assert (
        _pulled_in(f"{BARE}; import workbench.cli; workbench.cli.build_parser()", ("torch", "scipy", "xarray", "panel")) == []
    )


def test_every_public_name_is_where_the_facade_says():
    import workbench

    for name in workbench.__all__:
        assert getattr(workbench, name) is not None
        assert name in dir(workbench)
    with pytest.raises(AttributeError, match="no attribute 'shipped_model'"):
        _ = workbench.shipped_model


def test_importing_the_package_loads_nothing():
    code = "import workbench, sys; print(sorted(m for m in ('torch', 'xarray', 'numpy', 'scipy') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
