"""Jobs over emulated hosts."""
from pathlib import Path

#: Where the scripts are that their workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
