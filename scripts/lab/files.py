"""Files that other processes may read at any time."""
import os
from pathlib import Path


def replace_file(path, content):
    """Write text or bytes to a file at once: its readers get the former content, or all of the new content."""
    scratch = Path('%s.%d.part' % (path, os.getpid()))
    scratch.write_bytes(content if isinstance(content, bytes) else content.encode())
    scratch.replace(path)
