"""Serve the tables and the network of a training over HTTP, while the training goes on.

Start it on the directory of checkpoints of any job with dynamic tables::

    python examples/serve.py checkpoints --port 8000
    curl -d '{"features": [7, 8]}' localhost:8000/rows

A thread looks for a new checkpoint or delta every ``--reload-seconds``. Each answer has the step of the checkpoint, and
its age in seconds. ``GET /`` returns both alone.

With ``--symbol FILE``, the file ``...-symbol.json`` of ``mxhybrid.nn.export``, ``POST /predict`` takes the inputs of
the symbol by name: for ``features.rows`` the keys that are looked up in the table ``features``, for others numbers. It
returns the outputs of the network, whose dense weights are those of the same checkpoint. Without it, MXNet is not
needed. The first lines of click_prediction.py say how to train such a network.
"""
import argparse
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import mxhybrid

MOST_BYTES = 16 << 20  # of a request


class Model:
    """A checkpoint and the network of its weights: an answer comes from one of them alone.

    Parameters
    ----------
    tables : OpenCheckpoint
    symbol : mxnet.sym.Symbol or None
    """

    def __init__(self, tables, symbol):
        self.tables, self._symbol = tables, symbol
        if symbol is not None:
            import mxnet as mx
            self._mx, self._lock = mx, threading.Lock()
            weights = {name: mx.nd.array(tables[name].numpy()) for name in symbol.list_inputs() if name in tables}
            self._auxiliary = {name: weights.pop(name) for name in symbol.list_auxiliary_states()}
            self._weights = weights

    def rows(self, keys_by_table):
        """Return the rows of the keys of each table, as lists."""
        return {name: self.tables[name].rows(keys).tolist() for name, keys in keys_by_table.items()}

    def predict(self, values):
        """Return the outputs of the network for its inputs by name, as lists."""
        if self._symbol is None:
            raise ValueError('this server has no network: start it with --symbol')
        missing = set(self._symbol.list_arguments()) - set(self._weights)
        if set(values) != missing:
            raise ValueError('inputs {}: give {}'.format(sorted(values), sorted(missing)))
        inputs = {}
        for name, value in values.items():
            table = re.fullmatch(r'(.*)\.rows\d*', name)
            array = self.tables[table.group(1)].rows(value) if table else np.array(value, np.float32)
            inputs[name] = self._mx.nd.array(array)
        with self._lock:
            outputs = self._symbol.bind(self._mx.cpu(), {**self._weights, **inputs},
                                        aux_states=self._auxiliary).forward(is_train=False)
            return [output.asnumpy().tolist() for output in outputs]


class Handler(BaseHTTPRequestHandler):
    """Answers a request from the model that is newest at its beginning."""

    def do_GET(self):
        """Return the step and the age of the model."""
        self._answer(lambda model, request: {} if self.path == '/' else None)

    def do_POST(self):
        """Return rows or predictions."""
        self._answer(lambda model, request: {'/rows': lambda: {'rows': model.rows(request)},
                                             '/predict': lambda: {'outputs': model.predict(request)}}.get(
                                                 self.path, lambda: None)())

    def _answer(self, work):
        status, tables = 200, self.server.tables
        try:
            length = int(self.headers.get('Content-Length') or 0)
            if length > MOST_BYTES:
                raise ValueError('the request has {} bytes: send at most {}'.format(length, MOST_BYTES))
            request = json.loads(self.rfile.read(length) or b'{}')
            if not isinstance(request, dict):
                raise ValueError('the request is no JSON object')
            model = self.server.model
            answer = work(model, request)
            if answer is None:
                status, answer = 404, {'error': 'there is no {}: use /, /rows or /predict'.format(self.path)}
            answer.update(step=model.tables.step, age_s=tables.age_s)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            status, answer = 400, {'error': str(error)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Print nothing for each request."""


def follow(server, symbol, seconds, ends):
    """Give the server a model of each new checkpoint, until the event `ends`."""
    while not ends.wait(seconds):
        try:
            if server.tables.reload():
                server.model = Model(server.tables.current, symbol)
        except mxhybrid.CheckpointError as error:
            print('cannot reload: {}'.format(error), flush=True)


def main():
    """Serve until an interrupt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoints', help='the directory of checkpoints')
    parser.add_argument('--symbol', metavar='FILE', default=None, help='the network, as mxhybrid.nn.export wrote it')
    parser.add_argument('--host', default='127.0.0.1', help='the address to listen on (default %(default)s)')
    parser.add_argument('--port', type=int, default=8000, help='0: any free one (default %(default)s)')
    parser.add_argument('--reload-seconds', type=float, default=5, help='(default %(default)s)')
    args = parser.parse_args()
    symbol = None
    if args.symbol is not None:
        import mxnet as mx
        symbol = mx.sym.load(args.symbol)
    with ThreadingHTTPServer((args.host, args.port), Handler) as server:
        server.tables = mxhybrid.checkpoint.open_tables(args.checkpoints)
        server.model = Model(server.tables.current, symbol)
        ends = threading.Event()
        thread = threading.Thread(target=follow, args=(server, symbol, args.reload_seconds, ends))
        thread.start()
        print('serving step {} at http://{}:{}'.format(server.tables.step, *server.server_address), flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            ends.set()
            thread.join()


if __name__ == '__main__':
    main()
