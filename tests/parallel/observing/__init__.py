"""Traces, metrics, and the log of a job."""
from pathlib import Path

#: The folder of the scripts that workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
