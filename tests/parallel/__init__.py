"""Jobs of several workers on this machine, by real launchers."""
from pathlib import Path

#: Where the scripts are that their workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
