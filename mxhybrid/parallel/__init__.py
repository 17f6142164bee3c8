"""Layers of a network split over batch, model and domain, on any workers: plans, and what runs them."""
from .block import Parallel
from .plan import Plan
from .plan_files import load, save
from .plan_kinds import data_parallel, grid, layers, one_weird_trick

__all__ = ['Parallel', 'Plan', 'data_parallel', 'grid', 'layers', 'load', 'one_weird_trick',
           'save']
