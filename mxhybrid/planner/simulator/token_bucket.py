"""The token bucket: a rate with bursts, of a link under ``tc tbf`` or a core under a quota."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class TokenBucket:
    """What a resource gives: `rate` units a second, and after idleness up to `burst` units more, at `peak` a second.

    Units are bytes of a link and seconds of a core.  A link under ``tc tbf`` and a core under a quota of cgroups are
    such buckets; without a burst it is the rate alone.
    """

    rate: float
    peak: float = 0.0
    burst: float = 0.0
