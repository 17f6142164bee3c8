"""Find the compiled libraries of the package."""
import glob
import os
import sys
from typing import List


def compiled_files(folder: str, name: str) -> List[str]:
    """Return the compiled libraries with a name in a folder, that of this interpreter first."""
    return sorted(glob.glob(os.path.join(folder, name + '*.so')),
                  key=lambda path: (sys.implementation.cache_tag or '') not in path)
