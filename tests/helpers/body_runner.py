"""Runs several bodies, one after the other, in a worker of a job; `tests.helpers.joint_jobs.run_together` starts it.

The argument is JSON: for each body its name, the path of the script, its arguments, and its environment, which says
where its reports go.
"""
import contextlib
import json
import os
import runpy
import sys


@contextlib.contextmanager
def as_program(path, arguments, environment):
    """Let this process look like one that runs a script, while a block runs."""
    argv, search_path, before = sys.argv, list(sys.path), {name: os.environ.get(name) for name in environment}
    sys.argv = [path] + arguments
    sys.path.insert(0, os.path.dirname(path))
    os.environ.update(environment)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, search_path
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main():
    for name, path, arguments, environment in json.loads(sys.argv[1]):
        with as_program(path, arguments, environment):
            try:
                runpy.run_path(path, run_name='__main__')
            except BaseException:
                sys.stderr.write('the body %r does not come to its end:\n' % name)
                raise


if __name__ == '__main__':
    main()
