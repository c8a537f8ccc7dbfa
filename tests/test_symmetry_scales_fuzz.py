"""Random programs with scales and signs: nothing is claimed that the proof, or a second check on other weights, has to reject.

The steps are those of the permutation fuzz with more of what decides about degrees: odd, even and homogeneous functions, bounds,
numbers added, powers, extremes, comparisons, and constants laid beside computed entries.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_symmetry_fuzz import Program, claim_holds

from workbench.errors import WorkbenchError
from workbench.symmetry import discover_symmetry

PROGRAMS = 60


class Scaled(Program):
    def _activation(self, x):
        return self._pick(
            torch.relu, torch.relu, F.leaky_relu, torch.tanh, torch.sin, torch.abs, torch.square, torch.neg, F.softsign, F.hardtanh,
            F.elu, torch.round, torch.sign, lambda x: x, lambda x: x + 0.5, lambda x: 2 * x, lambda x: x.clamp(max=0),
            lambda x: x.clamp(-1, 2), lambda x: x.relu().pow(1.5), lambda x: x.pow(3), lambda x: torch.where(x > 0, x, 0.3 * x),
            lambda x: torch.where(x > 0, x, 0.3), lambda x: x.masked_fill(x < 0, 0.0), lambda x: x * (x > 0.1), lambda x: 1 - x,
            lambda x: x / (x.abs() + 1), lambda x: x.softmax(-1), lambda x: torch.div(x, 0.5, rounding_mode="floor"),
        )  # fmt: skip

    def _cat(self, x):
        kind = self._pick(torch.zeros_like, torch.ones_like, lambda x: x, torch.relu, torch.neg)
        dim = self._pick(1, -1)
        return lambda x: torch.cat([x, kind(x)], dim)

    def _residual(self, x):
        w = self._weight(x.shape[-1], x.shape[-1])
        return self._pick(
            lambda x: x + x @ self.weights[w],
            lambda x: x * torch.relu(x @ self.weights[w]),
            lambda x: torch.maximum(x, x @ self.weights[w]),
            lambda x: x + torch.tanh(x @ self.weights[w]),
            lambda x: torch.where(x > x @ self.weights[w], x, -x),
        )

    def _scale(self, x):
        w, b = self._weight(x.shape[-1]), self._weight(x.shape[-1])
        return self._pick(
            lambda x: x * self.weights[w],
            lambda x: x * self.weights[w] + self.weights[b],
            lambda x: F.layer_norm(x, (x.shape[-1],), self.weights[w], self.weights[b]),
            lambda x: F.layer_norm(x, (x.shape[-1],), None, self.weights[b]),
            lambda x: F.rms_norm(x, (x.shape[-1],), self.weights[w]),
            lambda x: F.normalize(x, dim=-1) * self.weights[w],
        )


def judge(seed: int) -> tuple[str, object]:
    """("no graph" | "plain" | "scaled", the symmetry): what was found; raises AssertionError for a claim that does not hold."""
    model = Scaled(seed)
    try:
        symmetry = discover_symmetry(model, (torch.randn(2, 5),), scales=True, signs=True)
    except WorkbenchError as error:
        if "could not capture" not in str(error):
            raise
        return "no graph", None
    assert not [note for note in symmetry.notes if "defect" in note], f"program {seed}: {symmetry.notes}"
    assert not [op for op in symmetry.unknown_ops if "rule failed" in op], f"program {seed}: {symmetry.unknown_ops}"
    assert claim_holds(model, symmetry, seed), f"program {seed}"
    return "scaled" if symmetry.scalings else "plain", symmetry


@pytest.mark.parametrize("chunk", range(4))
def test_no_scale_or_sign_is_claimed_that_does_not_hold(chunk):
    torch.set_num_threads(1)
    found = [judge(seed)[0] for seed in range(chunk, PROGRAMS, 4)]
    assert found.count("scaled") >= PROGRAMS // 16  # the control: there is something to be wrong about
