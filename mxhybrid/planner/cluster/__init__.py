"""Hosts, ranks, links, and what each kind of transfer costs on them."""
