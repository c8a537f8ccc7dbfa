"""The prepared run for an accelerator works on a CPU at reduced size, so that a device run does not fail on a slip."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent / "gpu" / "run.sh"


def test_the_prepared_run_on_a_cpu():
    done = subprocess.run(["bash", str(SCRIPT), "--device", "cpu", "--small"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("laws on cpu", "ResNet20", "encoder", "assignment n=1024, unrelated"):
        assert part in done.stdout
