"""Running a cell again and again, a failing one among them, keeps no tensors of earlier runs alive.

Runs in a process of its own: what other tests still hold must not count.
"""

import gc
import subprocess
import sys

SETUP = """
import torch
import workbench as wb
torch.set_num_threads(1)
a, b = (wb.shipped_checkpoint(f"digits-mlp-w64-seed{seed}") for seed in (0, 1))
task, model = wb.task("digits"), a.architecture.build()
symmetry = wb.discover_symmetry(model, task.example_inputs)
"""
WORK = """
second = wb.shipped_checkpoint("digits-mlp-w64-seed1").state
alignment = wb.align(symmetry, a.state, second, seed=0, model=model, inputs=task.splits["test"][0])
profile = wb.profile_path(wb.LinearPath(a.state, alignment.aligned), model, task, points=3)
"""
FAILING = """
broken = {name: tensor.clone().fill_(float("nan")) for name, tensor in b.state.items()}
wb.align(symmetry, a.state, broken)
"""
LEAKING = WORK + "kept = globals().get('kept', []) + [alignment]\n"


def alive() -> int:
    """Bytes of all storages that some tensor still holds."""
    import torch

    gc.collect()
    storages = {}
    for item in gc.get_objects():
        # Other tests in this process may have left sparse tensors behind, which have no storage to ask for.
        if type(item) in (torch.Tensor, torch.nn.Parameter) and item.layout is torch.strided:
            storages[item.untyped_storage()._cdata] = item.untyped_storage().nbytes()
    return sum(storages.values())


def growth(shell, cells) -> int:
    """Bytes that a second and third round of ``cells`` hold beyond the first."""
    held = []
    for _ in range(3):
        for cell in cells:
            shell.run_cell(cell, store_history=False)
        held.append(alive())
    return held[-1] - held[0]


def main() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.showtraceback = lambda *arguments, **options: None
    assert shell.run_cell(SETUP).success
    assert shell.run_cell(WORK).success
    assert not shell.run_cell(FAILING).success
    kept = growth(shell, [WORK, FAILING, WORK])
    assert kept == 0, f"{kept} bytes more after running the cells again"
    # the negative control: a cell that keeps its results must be seen
    assert growth(shell, [LEAKING]) > 0


def test_running_a_cell_again_keeps_nothing():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    main()
