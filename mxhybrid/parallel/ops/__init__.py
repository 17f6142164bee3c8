"""A network as traced operators: its graph, where samples are, and the rule of each operator."""
