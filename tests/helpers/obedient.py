"""Programs that use part of the package without MXNet, to be quick, and run statements of a test."""
import contextlib
import os
import subprocess
import sys

from mxhybrid.watchdog import lifeline

#: The first lines of each program: a package whose own module, which would import MXNet, is left out.
WITHOUT_MXNET = """
import sys, types
package = types.ModuleType('mxhybrid')
package.__path__ = [sys.argv[1]]
sys.modules['mxhybrid'] = package
"""

#: The last lines of an obedient program.
OBEY = """
print('ok', flush=True)
for statement in sys.stdin:
    try:
        exec(statement)
        print('ok', flush=True)
    except Exception as error:
        print('%s: %s' % (type(error).__name__, error), flush=True)
"""


def run_python(program, *args):
    """Start a program with the package's directory as its first argument."""
    package = os.path.dirname(os.path.dirname(lifeline.__file__))
    return subprocess.Popen([sys.executable, '-S', '-c', WITHOUT_MXNET + program, package, *map(str, args)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            universal_newlines=True, bufsize=1)


@contextlib.contextmanager
def killed_later():
    """Give a function that takes processes, which are killed after the block."""
    with contextlib.ExitStack() as stack:
        def take(process):
            stack.enter_context(process)  # waits for its end
            stack.callback(process.kill)
            return process

        yield take


class Obedient:
    """A process that runs a program, and then each statement that it is told; it answers with 'ok' or an error."""

    def __init__(self, program, *args):
        self.process = run_python(program + OBEY, *args)

    def answer(self):
        """Return the next line that the process writes."""
        line = self.process.stdout.readline()
        assert line, 'it has ended: ' + self.process.stderr.read()
        return line.strip()

    def say(self, statement):
        """Send a statement without waiting for the answer."""
        self.process.stdin.write(statement + '\n')

    def ask(self, statement):
        """Send a statement and wait for the answer."""
        self.say(statement)
        return self.answer()

    def do(self, statement):
        """Send a statement and wait until it has been run."""
        assert self.ask(statement) == 'ok'
