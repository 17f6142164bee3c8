"""Redistribution of a tensor from one layout to another: the boxes that ranks send to each other, and the
transports.
"""
