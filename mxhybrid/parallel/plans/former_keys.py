"""Former names of keys in plans, which work for one more release."""
from typing import Any, Dict, Mapping, Set

from ...base import log
from ...base.errors import InputError

logger = log.get_logger(__name__)

#: The present key of the split of an operator, by its former name.
FORMER_KEYS = {'addends': 'partials'}
#: Former names that a warning has named.
_warned: Set[str] = set()


def with_present_keys(split: Mapping[str, Any], owner: str) -> Dict[str, Any]:
    """Return the split of the operators `owner` with present keys; InputError if it has a key by both names."""
    renamed = dict(split)
    for former, present in FORMER_KEYS.items():
        if former not in renamed:
            continue
        if present in renamed:
            raise InputError('plan: %s has %s and %s, the former and the present name of one key: give %s only'
                             % (owner, former, present, present))
        renamed[present] = renamed.pop(former)
        if former not in _warned and log.speaks_for_all():
            _warned.add(former)
            logger.warning('plan: the key %s is now called %s: use that name, the former one works for one more '
                           'release', former, present)
    return renamed
