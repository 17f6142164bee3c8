"""Plans found instead of guessed: a simulated training step, and a search for the plan with the shortest one."""
from .cluster.cluster_spec import Cluster
from .planner import FoundPlan, Planner, search
from .task_graph.prediction import Prediction

__all__ = ['Cluster', 'FoundPlan', 'Planner', 'Prediction', 'search']
