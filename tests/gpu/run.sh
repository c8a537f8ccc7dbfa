#!/usr/bin/env bash
# The prepared run for a machine with an accelerator: law tests on the device, then the figures. Without one everything runs on the
# CPU at reduced size. Needs torch, numpy, scipy, numba, xarray and safetensors; nothing of the dashboard.
#     tests/gpu/run.sh [--device cuda] [--small]
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}"
exec python tests/gpu/figures.py "$@"
