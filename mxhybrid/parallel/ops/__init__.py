"""Traced operators of a network, and the rule of each: which input an output's box needs, and what may be split."""
