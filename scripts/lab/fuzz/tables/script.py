"""Turns a program with dynamic tables into the script that is run, and shown."""
import pprint
from typing import Any, Dict, List

from .. import script
from . import model, pieces

HEAD = script.HEAD.rsplit('WORDS', 1)[0].replace(
    'import sys\n', 'import sys\nimport types\nfrom unittest import mock\n') + '''\
from mxhybrid.checkpoint import dynamic_tables, importing, layers
from mxhybrid.checkpoint.philox import fill_first_values
from mxhybrid.kvstore.local_table import LocalTable
from mxhybrid.servers import dynamic_table

WIDTH, MOST_IDS, SLACK = %d, %d, False
''' % (pieces.WIDTH, pieces.MOST_IDS)


def tolerance(program: Dict[str, Any]) -> Any:
    """Return the relative and absolute differences that rounding may make."""
    return (1e-9, 1e-9) if program['dtype'] == 'float64' else (2e-5, 2e-5)


def standing_alone(programs: List[Dict[str, Any]], file: str = 'case.py') -> str:
    """Return a script that runs programs one after the other, and prints how the last one differs from its model."""
    sources = [script.body_of(programs, _function, tolerance(programs[-1]))]
    for module in (model, pieces, script.pieces):
        sources = script.needed('\n'.join(sources), module) + sources
    return '\n\n'.join([script.head(' tables', programs[-1], commands(programs[-1], file), HEAD), *sources])


def _function(program: Dict[str, Any], name: str) -> str:
    """Return a program as a function."""
    return 'def %s(job, record, directory):\n    run(%s, job, record, directory)\n' % (
        name, pprint.pformat(program, indent=1, width=110, compact=True).replace('\n', '\n        '))


def commands(program: Dict[str, Any], file: str) -> List[str]:
    """Return command lines that show the difference."""
    lines = script.commands(program, file)
    if any(event['do'] == 'move' for event in program['events']):
        lines.append(script.commands(dict(program, job=program['job']['next']), file + ' --moved')[-1])
    return lines
