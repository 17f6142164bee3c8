"""A fixed sample of scripts/fuzz, and that it would see a difference, make it small and show it."""
import re

import pytest
from lab.fuzz import cli, runner
from lab.fuzz.drawing import PER_JOB, draw
from lab.fuzz.script import standing_alone
from lab.jobs import run_job

#: Of each of these batches, which have other launchers and workers, the first programs.
BATCHES, PROGRAMS = (0, 4), 8


@pytest.mark.parametrize('batch', BATCHES)
def test_random_programs_give_what_mxnet_alone_gives(batch):
    programs = [draw(batch * PER_JOB + number) for number in range(PROGRAMS)]
    outcomes = runner.run(programs)
    failing = {program['seed']: outcome for program, outcome in zip(programs, outcomes) if outcome.fails}
    assert not failing, '\n'.join('seed %d (scripts/fuzz --seed %d shrinks it): %s' % (seed, seed, outcome)
                                  for seed, outcome in failing.items())
    assert sum(outcome.kind == 'same' for outcome in outcomes) > 0.8 * PROGRAMS


def test_a_planted_difference_is_found_made_small_and_shown(tmp_path):
    program = draw(3)
    program['job'] = {'launcher': 'none', 'workers': 1, 'servers': 1, 'wire': 'auto'}
    program['events'] = program['events'][:4]

    def plant(source):
        # The job's steps are a little longer.
        return re.sub(r'(?m)^( *)(record.at\(1,)', r'\1trainer._scale *= 1.01\n\1\2', source)
    outcome, = runner.run([program], plant)
    assert outcome.kind == 'differs'
    small = cli.shrink(program, outcome, plant)
    assert [event['do'] for event in small['events']] == ['step'] and len(small['model']['branches']) == 1
    assert small['optimizer']['name'] == 'sgd' and list(small['optimizer']['options']) == ['learning_rate']

    script = tmp_path / 'case.py'
    script.write_text(standing_alone([small], str(script)))
    run_job(script, 'none', args=['--mxnet']).ok()
    assert 'worker 0: no difference' in run_job(script, 'none').ok().output
    script.write_text(plant(script.read_text()))
    run_job(script, 'none').failed('worker 0, event 01/')
