"""Layers of a network split over batch, model and domain, on any workers: plans, and the code that runs them."""
from . import rules  # noqa: F401  registers them
from .plans.megatron import megatron
from .plans.pipeline_plan import pipeline
from .plans.plan import Plan
from .plans.plan_json import load, save
from .plans.strategies import by_name, data_parallel, grid, one_weird_trick
from .runtime.parallel_block import ParallelBlock

__all__ = ['ParallelBlock', 'Plan', 'data_parallel', 'by_name', 'grid', 'load', 'megatron',
           'one_weird_trick', 'pipeline', 'save']
