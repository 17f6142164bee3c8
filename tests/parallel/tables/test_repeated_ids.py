"""Row ids that a pushed array has more than once: their rows are summed, whatever carries them."""
import pytest
from lab.jobs import run_job

from . import BODIES


@pytest.mark.parametrize('launcher, wire, wire_dtype, trainer', [
    ('horovodrun', 'lane', 'float32', 'own rows'), ('launch.py', 'ps-lite', 'float32', 'own rows'),
    ('horovodrun', 'lane', 'float16', 'server gradients')])
def test_rows_of_one_id_are_summed(launcher, wire, wire_dtype, trainer):
    result = run_job(BODIES / 'repeated_ids.py', launcher, workers=2, servers=2,
                     env={'MXHYBRID_WIRE': wire, 'MXHYBRID_WIRE_DTYPE': wire_dtype}).ok()
    for rank in range(2):
        assert result.results[rank]['kinds'] == {'servers': ['server weights', 'server gradients'],
                                                 'allreduce': ['replicated', 'row allreduce']}
        assert result.results[rank]['trainer'] == trainer
