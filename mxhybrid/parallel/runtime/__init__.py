"""A split network as it runs on one rank: its program, its shards of parameters, inputs and outputs."""
