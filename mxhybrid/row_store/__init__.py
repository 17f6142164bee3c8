"""The rows of a partition of a dynamic table, in memory or in files: a compiled store, and its files in checkpoints."""
