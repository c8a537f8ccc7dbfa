"""Axis trees: splitting and joining must describe the same entries, whatever the structure.

The oracle writes an axis out: a permutation is drawn for every free atom and the tree is decoded to an index array. A cut of the
tree must then cut that array at the same place.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.symmetry.trees import (
    ONE,
    Atom,
    Cat,
    Prod,
    Reason,
    Uni,
    atoms,
    concatenation,
    fresh,
    normalise,
    pin,
    product,
    split_product,
    split_sum,
    uniform,
    unify,
)

WHY = Reason("test")


def written_out(tree, seed: int) -> np.ndarray:
    """Where each entry of the axis is read from, when every free atom is permuted at random (by ``seed`` and the atom's id)."""
    tree = normalise(tree)
    if isinstance(tree, Atom):
        return np.arange(tree.size) if tree.pins else np.random.default_rng([seed, tree.id]).permutation(tree.size)
    if isinstance(tree, Uni):
        return np.arange(tree.size)
    if isinstance(tree, Cat):
        starts = np.cumsum([0] + [part.size for part in tree.parts[:-1]])
        return np.concatenate([start + written_out(part, seed) for start, part in zip(starts, tree.parts, strict=True)])
    out = np.zeros(1, dtype=int)
    for child in tree.children:
        out = (out[:, None] * child.size + written_out(child, seed)[None, :]).reshape(-1)
    return out


trees = st.recursive(
    st.integers(1, 4).map(fresh),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(product), st.lists(inner, min_size=1, max_size=3).map(concatenation)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(trees, st.data())
def test_split_sum_cuts_where_it_says(tree, data):
    if tree.size < 2:
        return
    left = data.draw(st.integers(1, tree.size - 1))
    a, b = split_sum(tree, left, WHY)
    whole = written_out(tree, 0)
    assert (a.size, b.size) == (left, tree.size - left)
    assert np.array_equal(whole[:left], written_out(a, 0))
    assert np.array_equal(whole[left:], left + written_out(b, 0))


@settings(max_examples=150, deadline=None)
@given(trees, st.data())
def test_split_product_gives_rows_and_columns(tree, data):
    outer = data.draw(st.sampled_from([d for d in range(1, tree.size + 1) if tree.size % d == 0]))
    cut = split_product(tree, outer, WHY)
    if cut is None:
        return
    assert np.array_equal(written_out(tree, 0), written_out(product(cut), 0))
    rows, columns = written_out(cut[0], 0), written_out(cut[1], 0)
    assert np.array_equal(written_out(tree, 0), (rows[:, None] * cut[1].size + columns[None]).reshape(-1))


@settings(max_examples=150, deadline=None)
@given(trees, trees)
def test_unified_axes_move_alike(a, b):
    size = a.size * b.size
    left, right = product((a, fresh(b.size))), product((b, fresh(a.size)))
    merged = unify(left, right, WHY)
    assert merged.size == size
    assert np.array_equal(written_out(left, 1), written_out(right, 1))
    assert np.array_equal(written_out(left, 1), written_out(merged, 1))


def test_a_cat_absorbs_what_stands_on_its_right():
    a, b, c = Atom(2), Atom(3), Atom(4)
    tree = product((concatenation((a, b)), c))
    assert isinstance(tree, Cat)
    assert [list(atoms(part)) for part in tree.parts] == [[a, c], [b, c]]
    nested = product((c, concatenation((a, b))))  # the mirror image is not exact and stays nested
    assert isinstance(nested, Prod)


def test_disagreeing_factorisations_pin_both():
    a, b = product((Atom(3), Atom(4))), product((Atom(4), Atom(3)))
    unify(a, b, WHY)
    assert all(atom.pins for tree in (a, b) for atom in atoms(tree))
    # the control: a divisor chain has a common refinement and pins nothing
    c, d = product((Atom(2), Atom(6))), product((Atom(4), Atom(3)))
    unify(c, d, WHY)
    assert [atom.size for atom in atoms(c)] == [2, 2, 3] == [atom.size for atom in atoms(d)]
    assert not any(atom.pins for atom in atoms(c))


def test_pins_spread_through_bindings_both_ways():
    a, b = Atom(6), product((Atom(2), Atom(3)))
    pin(a, Reason("the input"))
    unify(a, b, WHY)
    assert all(atom.pins for atom in atoms(b))
    c, d = Atom(6), Atom(6)
    pin(d, Reason("the output"))
    unify(c, d, WHY)
    assert next(atoms(c)).pins


def test_uniform_is_a_promise_about_one_tensor_only():
    a = Atom(6)
    assert unify(uniform(6), a, WHY) is a
    assert a.ref is None
    unify(a, product((Atom(2), uniform(3))), WHY)  # binding turns the promise into a fresh loop
    assert [type(atom) for atom in atoms(a)] == [Atom, Atom]
    assert uniform(1) is ONE is fresh(1)


def test_axes_of_different_size_cannot_be_one_loop():
    with pytest.raises(AssertionError):
        unify(Atom(3), Atom(4), WHY)
