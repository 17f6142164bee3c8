"""The command ``mxhybrid``, one module per subcommand; only the jobs that it starts need MXNet and NumPy."""
