"""A short soak (scripts/soak is the long one): every step equal to NumPy, and nothing that piles up."""
from lab.soak.cli import soak


def test_a_job_of_random_steps_stays_equal_to_numpy():
    outcome = soak('horovodrun', workers=2, servers=2, seconds=0, steps=1500, interval=0.1)
    assert outcome['steps'] == 1500
    judged = {row['process'].split(' (')[0]: row['grew'] for row in outcome['judgement']}
    assert {name.split()[0] for name in judged} == {'worker', 'server', 'scheduler'} and len(judged) >= 4
    # Memory, shared or not, and its descriptors have not found their size after so few steps; threads have.
    assert not any('threads' in grew for grew in judged.values()), outcome['judgement']
    assert all(row['after']['threads'] > 0 and row['samples'] >= 8 for row in outcome['judgement'])
