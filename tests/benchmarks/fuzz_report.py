"""Random programs in bulk: how many there were, how many claims were wrong, and how often there was something to be wrong about.

    python tests/benchmarks/fuzz_report.py [PROGRAMS] [--first SEED] [--scales]

The programs are those of tests/test_symmetry_fuzz.py; every claim is tested by the engine's own proof and once more by running the
program itself in float64 on other weights.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_symmetry_fuzz import Program, claim_holds

from workbench.errors import WorkbenchError
from workbench.symmetry import discover_symmetry


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("programs", nargs="?", type=int, default=2000)
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--scales", action="store_true", help="look for scales and signs too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count: Counter[str] = Counter()
    start = time.perf_counter()
    for seed in range(options.first, options.first + options.programs):
        try:
            model = Program(seed)
            symmetry = discover_symmetry(model, (torch.randn(2, 5),), scales=options.scales, signs=options.scales)
        except WorkbenchError as error:
            count["not captured"] += 1
            print(f"program {seed}: {str(error)[:120]}", flush=True)
            continue
        defect = any("defect" in note for note in symmetry.notes)
        wrong = defect or (bool(symmetry.groups) and not claim_holds(model, symmetry, seed))
        if wrong:
            print(f"program {seed}: {symmetry.notes}", flush=True)
        count["wrong"] += wrong
        count["with a group"] += bool(symmetry.groups)
        count["with a dependent factor"] += any(group.over for group in symmetry.groups.values())
        count["with scales or signs"] += bool(symmetry.scalings)
        count["rule failed"] += any("rule failed" in op for op in symmetry.unknown_ops)
    total = options.programs - count["not captured"]
    seconds = time.perf_counter() - start
    print(f"{options.programs} programs, {seconds:.0f} s, not captured {count['not captured']}; of the {total} others:")
    for name in ("wrong", "with a group", "with a dependent factor", "with scales or signs", "rule failed"):
        print(f"  {name}: {count[name]} ({count[name] / total:.1%})")
    return int(count["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
