"""Plans found instead of guessed: a simulated training step, and a search for the plan with the shortest one."""
from .cluster import Cluster
from .planning import FoundPlan, Planner, search
from .prediction import Prediction

__all__ = ['Cluster', 'FoundPlan', 'Planner', 'Prediction', 'search']
