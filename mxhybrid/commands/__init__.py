"""The command ``mxhybrid``, a module a subcommand; but for jobs that these start, it works without MXNet and NumPy."""
