"""Symmetry: which parameter changes leave a model's function alone."""
