"""Run several bodies in one job, because starting its processes takes longer than most bodies."""
import dataclasses
import json
import tempfile
from pathlib import Path

from lab import reports
from lab.jobs import run_job
from lab.processes import JobFailed

RUNNER = Path(__file__).resolve().parent / 'body_runner.py'


def body(path, *arguments, **environment):
    """Describe a body for `run_together`: its script, its arguments, and variables that are set while it runs."""
    return str(path), [str(argument) for argument in arguments], {
        name: str(value) for name, value in environment.items()}


def run_together(bodies, *how, ends_badly=(), **options):
    """Run several bodies, as `body` describes them, in the same workers, one after the other.

    Return a `Result` for each body by its name, with its reports, and with the output of the whole job. JobFailed if a
    body fails; the output names it. The launcher, workers and so on are as for `lab.jobs.run_job`. With `ends_badly`,
    the last body ends the job with another status than 0, and the output says these words.
    """
    with tempfile.TemporaryDirectory(prefix='mxhybrid-reports-') as directory:
        program = []
        for number, (name, (path, arguments, environment)) in enumerate(bodies.items()):
            folder = Path(directory) / str(number)
            folder.mkdir()
            program.append((name, path, arguments, dict(environment, **{reports.DIRECTORY: str(folder)})))
        result = run_job(RUNNER, *how, args=[json.dumps(program)], **options)
        if ends_badly:
            result.failed(*ends_badly)
        else:
            result.ok()
        results = {name: dataclasses.replace(result, results=reports.read_reports(Path(environment[reports.DIRECTORY])))
                   for name, _, _, environment in program}
    for name in list(bodies)[:-1 if ends_badly else None]:
        if not results[name].results:
            raise JobFailed('the body %r reported nothing:\n%s' % (name, result.tail()))
    return results
