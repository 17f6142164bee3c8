"""The command ``mxhybrid``: each subcommand is a module with ``add_arguments``, ``run`` and ``main``.

``mxhybrid doctor`` and ``python -m mxhybrid.commands.doctor`` are the same.  Everything here but the jobs
:mod:`~mxhybrid.commands.sanity` and :mod:`~mxhybrid.commands.meeting` works without MXNet, Horovod or NumPy.
"""
