"""Measurements of the planner's own cost, without a job."""
