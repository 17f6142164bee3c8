"""What a check has found, for people and for programs."""
from dataclasses import asdict, dataclass, field
from typing import Any, Dict

#: What a finding can be: as it should be, worth a thought, in the way of a job.
FINE, ADVICE, FAILED = 'fine', 'advice', 'failed'


@dataclass
class Finding:
    """The result of one check."""

    #: Heading under which it is shown.
    group: str
    #: Of the check; the same on all workers.
    name: str
    #: One of FINE, ADVICE and FAILED.
    level: str
    text: str
    #: What to do about it, unless it is fine.
    remedy: str = ''
    #: JSON values for who compares hosts or reads the report by program.
    data: Dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> 'Finding':
        return cls(**value)
