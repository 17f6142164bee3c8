"""Joins what a launcher started: ranks, addresses, children, the orderly end."""
