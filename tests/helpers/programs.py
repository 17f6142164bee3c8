"""Run programs of tests in processes of their own, which may get limits, lack modules, or be killed."""
import subprocess
import sys

from lab.launchers import REPOSITORY


def run_program(program, *arguments, check=True, **options):
    """Run a Python program that imports the package of this repository; return the process with its output as text."""
    return subprocess.run([sys.executable, '-c', program, *map(str, arguments)], cwd=str(REPOSITORY), check=check,
                          stdout=subprocess.PIPE, text=True, timeout=50, **options)
