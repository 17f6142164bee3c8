"""A library in the place of NVIDIA's driver, which finds no device."""
import subprocess
from pathlib import Path


def compile_no_driver(directory):
    """Compile no_driver.c into libcuda.so.1 in a directory, for LD_LIBRARY_PATH."""
    subprocess.run(['g++', '-x', 'c', '-shared', '-fPIC', '-o', str(directory / 'libcuda.so.1'),
                    str(Path(__file__).with_suffix('.c'))], check=True, timeout=60)
