"""Matching: the symmetry element that brings one model close to another."""

from workbench.matching.activations import ActivationMatching
from workbench.matching.alignment import Alignment, Preservation
from workbench.matching.all_to_one import AllToOne
from workbench.matching.covariance import CovarianceMatching
from workbench.matching.data import MatchingData
from workbench.matching.frank_wolfe import FrankWolfe
from workbench.matching.many import MANY_MATCHERS, ManyMatch, ManyMatcher, ManyProblem, many_matcher
from workbench.matching.matcher import MATCHERS, NEEDS, Match, Matcher, MatchStep, matcher, matcher_needs
from workbench.matching.merge_many import MergeMany
from workbench.matching.pairwise import align
from workbench.matching.problem import MatchingProblem
from workbench.matching.sinkhorn import SinkhornMatching
from workbench.matching.spectral import AnnealedMatching, SpectralMatching
from workbench.matching.straight_through import StraightThrough
from workbench.matching.together import MultiAlignment, align_many, cycle_error
from workbench.matching.universe import UniverseFrankWolfe
from workbench.matching.weights import WeightMatching

__all__ = [
    "MANY_MATCHERS",
    "MATCHERS",
    "NEEDS",
    "ActivationMatching",
    "Alignment",
    "AllToOne",
    "AnnealedMatching",
    "CovarianceMatching",
    "FrankWolfe",
    "ManyMatch",
    "ManyMatcher",
    "ManyProblem",
    "Match",
    "MatchStep",
    "Matcher",
    "MatchingData",
    "MatchingProblem",
    "MergeMany",
    "MultiAlignment",
    "Preservation",
    "SinkhornMatching",
    "SpectralMatching",
    "StraightThrough",
    "UniverseFrankWolfe",
    "WeightMatching",
    "align",
    "align_many",
    "cycle_error",
    "many_matcher",
    "matcher",
    "matcher_needs",
]
