#!/usr/bin/env bash
# One prepared check for a machine with a CUDA device: torch >= 2.11, numpy, scipy, xarray, scikit-learn, safetensors and pytest are
# enough (no panel, no holoviews, nothing installed). Under ten minutes. From the root of the checkout:  bash tests/gpu/run.sh
#
# Part 1 prints figures, CUDA beside the CPU, and fails where the two disagree. Part 2 runs the tests of the computing layers,
# whose device="auto" is the CUDA device there.
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1
python3 - <<'PY' || exit 1
import sys
try:
    import torch
except ImportError:
    sys.exit("needs CUDA: there is no torch in this python3")
sys.exit(0 if torch.cuda.is_available() else "needs CUDA: torch finds no device")
PY
timeout 240 python3 tests/gpu/figures.py; figures=$?
tests=$(ls -d tests/test_*.py tests/*/ | grep -v -E 'test_(cli|readme|wheel|notebooks|layers|plots)|tests/(apps|plots|gpu|benchmarks)|__pycache__')
timeout 300 python3 -m pytest -o addopts= --strict-markers -q -m "not browser and not slow" --maxfail=20 -p no:cacheprovider $tests; rest=$?
echo "figures: exit $figures   tests: exit $rest"
[ "$figures" -eq 0 ] && [ "$rest" -eq 0 ]
