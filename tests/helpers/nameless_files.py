"""List the open files of this process that no directory names any more."""
import os
from pathlib import Path


def nameless_files(directory):
    """Return the paths in /proc of the open files that were made in a directory and have lost their names, by name."""
    files = {}
    for path in Path('/proc/self/fd').iterdir():
        try:
            target = os.readlink(str(path))
        except OSError:  # that of this listing
            continue
        if target.startswith('%s/' % directory) and target.endswith(' (deleted)'):
            files[os.path.basename(target)] = path
    return files
