"""Processes that fail, hang or stay behind, wrong input, and strangers."""
from pathlib import Path

#: The folder of the scripts that workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
