"""Random programs with dynamic tables: each runs in a job, and in one process with MXNet and plain Python.

A program is a dict that JSON can hold, see :func:`drawing.draw`; an event is a call of a method of
:class:`pieces.Training`.
"""
from .. import runner
from . import drawing, script, shrinking

TABLES = runner.Kind('tables', drawing.draw, drawing.PER_JOB, script.standing_alone, script.commands, script.tolerance,
                     shrinking.structures, shrinking.changes)
