"""Random programs with dynamic tables: each runs in a job, and in one process with MXNet and plain Python.

A program is a dict that JSON can hold, see :func:`drawing.draw`; an event is a call of a method of
:class:`pieces.Training`.

=============  ==========================================================================================
module         contents
=============  ==========================================================================================
`drawing`      draws programs from seeds
`pieces`       what their scripts are made of: training with mxhybrid
`model`        the same with MXNet and dicts
`script`       turns a program into the script that is run, and shown
`shrinking`    gives simpler programs
=============  ==========================================================================================
"""
from .. import runner
from . import drawing, script

TABLES = runner.Kind('tables', drawing.draw, drawing.PER_JOB, script.standing_alone, script.commands, script.tolerance)
