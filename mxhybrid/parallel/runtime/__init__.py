"""A split network on one rank: its program, and its shards of parameters, inputs and outputs."""
