"""Files that are whole whenever anybody reads them."""
import os


def write_atomically(fname: str, data: bytes) -> None:
    """Write a file aside and move it into place, so that nobody ever reads half of it."""
    aside = '%s.%d.part' % (fname, os.getpid())
    try:
        with open(aside, 'wb') as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(aside, fname)
    finally:
        if os.path.exists(aside):
            os.remove(aside)
