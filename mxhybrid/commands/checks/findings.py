"""Findings: the results of checks, for people and for programs."""
from dataclasses import dataclass, field
from typing import Any, Dict

#: Levels of findings: no problem; advice; a problem that keeps a job from working.
FINE, ADVICE, FAILED = 'fine', 'advice', 'failed'


@dataclass
class Finding:
    """The result of one check."""

    #: Heading under which it is shown.
    group: str
    #: The name of the check, the same on all workers.
    name: str
    #: One of FINE, ADVICE and FAILED.
    level: str
    text: str
    #: A way to solve the problem, unless the level is FINE.
    remedy: str = ''
    #: JSON values for the comparison of hosts, and for programs that read the report.
    data: Dict[str, Any] = field(default_factory=dict)
