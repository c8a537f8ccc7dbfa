"""Matching: the symmetry element that brings one model close to another."""

from workbench.matching.alignment import Alignment, Preservation
from workbench.matching.matcher import MATCHERS, Match, Matcher, MatchStep, matcher
from workbench.matching.pairwise import align
from workbench.matching.problem import MatchingProblem
from workbench.matching.weights import WeightMatching

__all__ = [
    "MATCHERS",
    "Alignment",
    "Match",
    "MatchStep",
    "Matcher",
    "MatchingProblem",
    "Preservation",
    "WeightMatching",
    "align",
    "matcher",
]
