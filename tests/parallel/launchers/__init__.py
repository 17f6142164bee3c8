"""Launchers: scripts/launch.py, mxhybrid run, and launchers of others."""
from pathlib import Path

#: The folder of the scripts that workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
