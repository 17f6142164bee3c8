"""Compiled arithmetic on arrays, and operators of MXNet's graphs that are made of it."""
