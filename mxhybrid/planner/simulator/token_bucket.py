"""The token bucket: a rate with bursts, as a link under ``tc tbf`` or a core under a CPU quota has it."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class TokenBucket:
    """The speed of a resource: `rate` units a second, and after idle time up to `burst` units more, at `peak` a second.

    A unit is a byte of a link or a second of a core.  A link under ``tc tbf`` and a core under a quota of cgroups
    behave like this.  Without a burst only the rate counts.
    """

    rate: float
    peak: float = 0.0
    burst: float = 0.0
