"""Tests on GPUs: scripts/gpu runs them."""
