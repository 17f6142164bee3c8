"""Layers of a network split over batch, model and domain, on any workers: plans, and the code that runs them."""
from . import rules  # noqa: F401  registers them
from .plans.megatron import megatron
from .plans.pipeline_plan import pipeline
from .plans.plan import Plan
from .plans.plan_json import load, save
from .plans.strategies import data_parallel, grid, layers, one_weird_trick
from .runtime.parallel_block import Parallel

__all__ = ['Parallel', 'Plan', 'data_parallel', 'grid', 'layers', 'load', 'megatron',
           'one_weird_trick', 'pipeline', 'save']
