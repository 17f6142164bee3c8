"""Pipelines in real jobs equal one process, overlap their passes, save memory, and refuse bad gradients of the loss."""
import pytest
from lab.jobs import run_job

from . import BODIES

pytestmark = pytest.mark.timeout(400)

#: The highest number of micro-batches that are alive on each worker.
ALIVE = {'1f1b': [4, 3, 2, 1], 'eager-1f1b': [7, 5, 3, 1], 'gpipe': [8] * 4, 'scaled': [4, 3, 2, 1],
         'scaled gpipe': [4] * 4, 'single samples': [2, 2, 1, 1], 'inside': [2, 2, 1, 1], 'uneven': [1, 1, 2, 1],
         'float32': [4, 3, 2, 1], 'recomputed 1f1b': [4, 3, 2, 1], 'recomputed eager-1f1b': [7, 5, 3, 1],
         'recomputed gpipe': [8] * 4}


@pytest.fixture(scope='module')
def four(tmp_path_factory):
    result = run_job(BODIES / 'pipelines.py', 'horovodrun', workers=4, args=[str(tmp_path_factory.mktemp('sent'))],
                     timeout=120).ok()
    return [result.results[rank] for rank in range(4)]


@pytest.mark.parametrize('name', sorted(ALIVE))
def test_a_pipeline_is_equal_to_one_process(four, name):
    error = 1e-5 if name == 'float32' else 1e-10
    for rank, worker in enumerate(four):
        outcome = worker['outcomes'][name]
        assert outcome['error'] < error and outcome['losses'] < error * 100, (rank, outcome)
        assert outcome['alive'] == ALIVE[name][rank]


def test_the_tied_weight_is_on_both_end_stages(four):
    assert [worker['outcomes']['1f1b']['tied'] for worker in four] == [[0, 3]] * 4


def test_the_report_shows_the_stages(four):
    report = four[0]['outcomes']['1f1b']['report']
    assert 'pipeline of 4 stages, 8 micro-batches, 1f1b on 4 workers' in report
    assert 'stage 0 on ranks 0: ' in report and 'stage 3 on ranks 3: ' in report
    assert 'a stage holds those of at most 1 or 2 or 3 or 4 micro-batches' in report
    assert 'for the joint batch on worker' not in report


def test_a_saved_plan_and_other_batches(four):
    for worker in four:
        assert worker['outcomes']['files']['same'] and worker['outcomes']['files']['apart'] < 1e-12


def test_stages_overlap(four):
    assert four[0]['sent'] == 2 * 8


def test_activations_are_bounded_by_the_stages(four):
    """The first stage of two holds the activations of 2 of 16 micro-batches, each of more than 8 MB."""
    memory = four[0]['memory']
    assert memory['gpipe'] - memory['1f1b'] > 14 * 8 * 2 ** 20 * 0.7, memory


def test_a_stage_may_compute_an_output_of_data_alone(four):
    for rank, worker in enumerate(four):
        for differences in worker['output_of_data'].values():
            assert len(differences) == (2 if rank < 2 else 3) and max(differences) < 1e-6, (rank, differences)


@pytest.mark.parametrize('by', ['workers', pytest.param('samples', marks=pytest.mark.slow)])
def test_a_loss_gradient_that_does_not_fit_is_refused(by):
    result = run_job(BODIES / 'bad_head_gradient.py', 'horovodrun', workers=2, args=[by], timeout=60)
    assert result.returncode
    assert "a pipeline with schedule='1f1b': the gradient of the loss is between 1.0 and 2.0" in result.output
