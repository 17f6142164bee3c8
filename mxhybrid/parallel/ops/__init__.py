"""A network as traced operators: its graph, its sample axes, and the registry of the operators' rules."""
