"""Training equals MXNet in one process, whatever a script does around its loop."""
from pathlib import Path

#: The folder of the scripts that workers run.
BODIES = Path(__file__).resolve().parent / 'bodies'
