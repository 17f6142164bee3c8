"""Counts of the operators that were drawn, and a list of the operators that never are."""
import collections
from typing import List

from .catalogue.absent import reasons
from .network import Program


def table(programs: List[Program]) -> str:
    """List how often each operator was drawn, and the operators of MXNet that never are, with reasons."""
    counts = collections.Counter(statement['op'] for program in programs for statement in program['statements'])
    lines = ['operators drawn: ' + ', '.join('%s %d' % item for item in sorted(counts.items()))]
    for reason, names in sorted(reasons().items()):
        lines.append('never drawn, %s: %s' % (reason, ', '.join(sorted(names))))
    return '\n'.join(lines)
