"""Hosts, ranks, links, and the cost of each kind of transfer on them."""
