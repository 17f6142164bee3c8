"""Random training programs: each runs in a job and in one process with MXNet alone, and must not differ.

`networks` has the same for networks that are split, and `tables` for dynamic tables, beside a model.
"""
