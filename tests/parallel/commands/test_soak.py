"""A short soak (scripts/soak is the long one): every step equal to NumPy, and nothing that piles up."""
from lab.soak.cli import soak


def test_a_job_of_random_steps_stays_equal_to_numpy():
    outcome = soak('horovodrun', workers=2, servers=2, seconds=0, steps=1500, interval=0.1)
    assert outcome['steps'] >= 1500
    judged = {row['process'].split(' (')[0]: row['grew'] for row in outcome['judgement']}
    assert {name.split()[0] for name in judged} == {'worker', 'server', 'scheduler'} and len(judged) >= 4
    # Memory, shared or not, and its descriptors have not found their size after so few steps; threads have.
    assert not any('threads' in grew for grew in judged.values()), outcome['judgement']
    assert all(row['after']['threads'] > 0 and row['samples'] >= 8 for row in outcome['judgement'])


def test_expiring_keys_stay_equal_to_one_process():
    outcome = soak('horovodrun', workers=2, servers=2, seconds=0, steps=400, interval=0.1, expiry=True)
    assert outcome['steps'] >= 400
    for values in outcome['results'].values():
        assert all(rows > 500 for rows in values['rows'].values()), values
        assert all(expired > 1000 for expired in values['expired'].values()), values
