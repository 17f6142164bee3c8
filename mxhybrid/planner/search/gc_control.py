"""When Python looks for objects that are in cycles."""
import atexit
import contextlib
import gc
from typing import Iterator


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """It does not, meanwhile: a search keeps much, none of it in cycles, and to look for those takes a tenth of the
    time.
    """
    were_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if were_on:
            if not gc.get_freeze_count():
                # All are old now: else they would be looked through as soon as it is on.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def skip_final_gc() -> None:
    """Nor when the program ends, which takes a second or more where much is kept."""
    atexit.register(gc.freeze)
