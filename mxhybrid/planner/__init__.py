r"""The planner: simulates training steps of a network on a cluster, and searches for the plan with the shortest step.

Users and commands import from here; the folders below may change.

- Plans: :func:`search` finds one; :class:`Planner` also predicts the steps of given ones.  Both return
  :class:`Prediction`\ s, a search inside a :class:`FoundPlan`.
- Operators: :class:`OperatorProfiler` times them on this machine.
- Clusters: :class:`Calibration` measures a :class:`Cluster`; :func:`load_cluster`, :func:`save_cluster`.
- Formulas: :func:`cost_report` and :func:`draw_costs` show the α-β model of Gholami et al., for the layers that
  :func:`layer_sizes` finds in a network.
- Reports: :func:`plan_report`, :func:`dynamic_tables_report`, :func:`prediction_summary`, :func:`draw_plan`,
  :func:`draw_gantt` and :func:`write_timeline`.
"""
from .analytic.communication_cost import PAPER_NETWORK, fit_alpha_beta
from .analytic.cost_table import cost_report, cost_rows, draw_costs
from .analytic.layer_sizes import layer_sizes
from .calibration.calibration import Calibration
from .cluster.cluster_spec import Cluster, load as load_cluster, save as save_cluster
from .planner import SEARCH_SECONDS, FoundPlan, Planner, search
from .profiling.operator_profiler import OperatorProfiler
from .reports.dynamic_tables_report import dynamic_tables_report
from .reports.plan_diagram import check_diagram_path, draw_plan
from .reports.prediction_table import plan_report, prediction_summary
from .reports.timeline_export import draw_gantt, write_timeline
from .search.gc_control import skip_final_gc
from .task_graph.prediction import Prediction

__all__ = ['Calibration', 'Cluster', 'FoundPlan', 'OperatorProfiler', 'PAPER_NETWORK', 'Planner', 'Prediction',
           'SEARCH_SECONDS', 'fit_alpha_beta', 'check_diagram_path', 'cost_report', 'cost_rows', 'draw_costs',
           'draw_gantt', 'draw_plan', 'dynamic_tables_report', 'load_cluster', 'skip_final_gc',
           'plan_report', 'prediction_summary', 'save_cluster', 'search', 'layer_sizes', 'write_timeline']
