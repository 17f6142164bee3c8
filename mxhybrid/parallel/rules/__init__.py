"""For each operator of MXNet: how it can be split, what a part of it reads, and which attributes the part has."""
