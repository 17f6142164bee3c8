"""Settings: their sources, the precedence of sources, and messages about wrong values."""
import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest

import mxhybrid
from mxhybrid.base.errors import HybridError, SettingError
from mxhybrid.base.settings import (
    ALL,
    DECLARED,
    DEFAULT_TIMEOUT_S,
    EACH,
    WORKER_0,
    Settings,
    as_written,
    check_equal,
    resolve,
    variable,
)

pytestmark = pytest.mark.both_pythons


def problem(keywords=None, environ=None):
    """Return the message of the SettingError that these settings raise."""
    with pytest.raises(SettingError) as caught:
        resolve(keywords, environ or {})
    return str(caught.value)


# ------------------------------------------------------------------------------------------ sources


def test_defaults():
    assert resolve({}, {}) == Settings(
        partitions=(), servers_per_host=1, timeout=DEFAULT_TIMEOUT_S, log_level='INFO', trace='', metrics='',
        tensorboard='', routes=(), partition_file='')
    assert resolve(None, {}) == Settings()


def test_variables_carry_the_projects_prefix():
    assert [variable(field.name) for field in dataclasses.fields(Settings)] == [
        'MXHYBRID_PARTITIONS', 'MXHYBRID_SERVERS_PER_HOST', 'MXHYBRID_TIMEOUT', 'MXHYBRID_LOG_LEVEL', 'MXHYBRID_TRACE',
        'MXHYBRID_METRICS', 'MXHYBRID_TENSORBOARD', 'MXHYBRID_ROUTES', 'MXHYBRID_PARTITION_FILE', 'MXHYBRID_WIRE_DTYPE',
        'MXHYBRID_MAX_BATCH_ROWS', 'MXHYBRID_STORAGE', 'MXHYBRID_STORAGE_MEMORY', 'MXHYBRID_STALENESS',
        'MXHYBRID_ROW_TRANSPORT', 'MXHYBRID_DENSE_TRANSPORT', 'MXHYBRID_ON_DEMAND_ROWS', 'MXHYBRID_SHARD_UPDATES',
        'MXHYBRID_REPLACE_LOCAL_STORES', 'MXHYBRID_BIND_TO_CORES', 'MXHYBRID_SILENCE_TIMEOUT',
        'MXHYBRID_STALL_TIMEOUT']


@pytest.mark.parametrize('name, text, from_text, value, from_value', [
    ('partitions', '3', (('*', 3),), 5, (('*', 5),)),
    ('servers_per_host', '2', 2, 4, 4),
    ('on_demand_rows', 'off', False, True, True),
    ('timeout', '7.5', 7.5, 9, 9.0),
    ('silence_timeout', '7.5', 7.5, 9, 9.0),
    ('stall_timeout', '0', 0.0, 9, 9.0),
    ('log_level', 'debug', 'DEBUG', 'warning', 'WARNING'),
    ('trace', 'a.json', 'a.json', pathlib.Path('b.json'), 'b.json'),
    ('metrics', 'a.jsonl', 'a.jsonl', 'b.jsonl', 'b.jsonl'),
    ('tensorboard', '/runs', '/runs', 'runs', 'runs'),
    ('routes', 'servers', (('*', 'servers'),), {'e*': 'allreduce'}, (('e*', 'allreduce'),)),
    ('on_demand_rows', '0', False, 'on', True),
    ('replace_local_stores', 'on', True, 0, False),
    ('shard_updates', '1', True, 'off', False),
    ('bind_to_cores', '1', True, 'off', False),
    ('bind_to_cores', 'Auto', None, False, False),
    ('storage', '/a', (('*', '/a'),), {'u*': pathlib.Path('/b'), '*': 'Memory'}, (('u*', '/b'), ('*', 'memory'))),
    ('storage_memory', '8G', (('*', 8 * 1000 ** 3),), {'u*': 5 * 10 ** 6}, (('u*', 5 * 10 ** 6),)),
    ('storage_memory', '1.5 MB', (('*', 1500000),), '2000000B', (('*', 2 * 10 ** 6),)),
    ('staleness', '1', (('*', 1),), {'u*': 2, '*': 0}, (('u*', 2), ('*', 0))),
    ('partition_file', '/a/found.json', '/a/found.json', pathlib.Path('/b/found.json'), '/b/found.json'),
    ('wire_dtype', ' float16 ', (('*', 'float16'),), np.float16, (('*', 'float16'),)),
    ('wire_dtype', 'float16', (('*', 'float16'),), np.dtype('float32'), (('*', 'float32'),)),
    ('wire_dtype', 'e*=int8, *=float16', (('e*', 'int8'), ('*', 'float16')), {'f*': np.int8}, (('f*', 'int8'),)),
])
def test_keyword_wins_over_environment_over_default(name, text, from_text, value, from_value):
    environ = {variable(name): text}
    assert getattr(resolve({}, environ), name) == from_text
    assert getattr(resolve({name: value}, environ), name) == from_value
    assert getattr(resolve({name: None}, environ), name) == from_text
    assert getattr(resolve({}, {variable(name): '  '}), name) == getattr(Settings(), name)


def test_whose_value_counts():
    scopes = {scope: [name for name, declaration in DECLARED.items() if declaration.scope == scope]
              for scope in (ALL, WORKER_0, EACH)}
    assert scopes[EACH] == ['timeout', 'log_level']
    assert list(Settings().shared()) == scopes[ALL]
    assert resolve({'timeout': 3, 'log_level': 'debug', 'trace': 'x', 'stall_timeout': 9}, {}).shared() == (
        Settings().shared())
    assert resolve({'routes': 'servers'}, {}).shared() != Settings().shared()
    assert [name for name, declaration in DECLARED.items() if declaration.is_output] == [
        'trace', 'metrics', 'tensorboard', 'partition_file']


def test_the_real_environment_is_read_by_default(monkeypatch):
    monkeypatch.setenv('MXHYBRID_TIMEOUT', '33')
    assert resolve().timeout == 33


def test_a_keyword_hides_a_wrong_environment_variable():
    assert resolve({'timeout': 5}, {'MXHYBRID_TIMEOUT': 'soon'}).timeout == 5


def test_unknown_settings_are_named_with_the_known_ones():
    text = problem({'partition': 4})
    assert "unknown setting 'partition'" in text
    for field in dataclasses.fields(Settings):
        assert field.name in text


def test_setting_errors_are_value_errors_of_the_project():
    assert issubclass(SettingError, ValueError) and issubclass(SettingError, HybridError)


@pytest.mark.parametrize('keywords, limits', [
    ({}, (DEFAULT_TIMEOUT_S, DEFAULT_TIMEOUT_S / 2, 600)),
    ({'timeout': 20}, (20, 10, 600)),
    ({'timeout': 2}, (2, 3, 600)),  # three beats at least
    ({'timeout': 20, 'silence_timeout': 50, 'stall_timeout': 0}, (20, 50, 0)),
])
def test_when_the_job_monitor_acts(keywords, limits):
    assert tuple(resolve(keywords, {}).limits) == limits


# ------------------------------------------------------------------------------------------ counts

@pytest.mark.parametrize('value', [4, '4', ' 4 ', '+4'])
def test_counts_may_be_numbers_or_text(value):
    assert resolve({'servers_per_host': value}, {}).servers_per_host == 4
    assert resolve({'partitions': value}, {}).partitions_for('any') == 4


@pytest.mark.parametrize('value, meaning', [(True, True), ('1', True), (' On ', True), ('true', True), (1, True),
                                            (False, False), ('0', False), ('OFF', False), ('false', False)])
def test_switches(value, meaning):
    assert resolve({'on_demand_rows': value}, {}).on_demand_rows is meaning


def test_auto():
    settings = resolve({'partitions': 'embed*=auto,out*= AUTO ,*=4'}, {})
    assert [settings.is_auto(name) for name in ('embed0', 'out', 'other')] == [True, True, False]
    assert [settings.partitions_for(name) for name in ('embed0', 'out', 'other')] == [None, None, 4]
    assert settings.any_auto and resolve({'partitions': {'embed*': 'auto', 'out*': 'auto', '*': 4}}, {}) == settings
    assert resolve({}, {'MXHYBRID_PARTITIONS': 'auto'}).is_auto('any')
    assert not resolve({'partitions': 4}, {}).any_auto and not resolve({}, {}).is_auto('any')
    assert "'auto' finds a count" in problem({'partitions': 'automatic'})


def test_partition_files_are_absolute_and_no_directories(tmp_path):
    assert resolve({'partition_file': 'a.json'}, {}).partition_file == os.path.join(os.getcwd(), 'a.json')
    for name, text in (('partition_file', problem({'partition_file': str(tmp_path)})),
                       ('MXHYBRID_PARTITION_FILE', problem({}, {'MXHYBRID_PARTITION_FILE': str(tmp_path)}))):
        assert text.startswith('%s=%r is a directory' % (name, str(tmp_path)))
        assert str(tmp_path / 'partitions.json') in text


# ------------------------------------------------------------------------------------------ patterns


COUNTS_BY_NAME = {'embed0_weight': 8, 'out1': 3, 'out12': 2}
ROUTES_BY_NAME = {'embed0': 'allreduce', 'out': 'servers', 'other': 'auto'}


@pytest.mark.parametrize('name, of_parameter, value, expected', [
    ('partitions', Settings.partitions_for, 'embed*=8,out?=3,*=2', COUNTS_BY_NAME),
    ('partitions', Settings.partitions_for, {'embed*': 8, 'out?': 3, '*': 2}, COUNTS_BY_NAME),
    ('partitions', Settings.partitions_for, ' embed*=8 , out?=3, *=2,', COUNTS_BY_NAME),
    ('partitions', Settings.partitions_for, {'embed*': '8', 'out?': '3', '*': '2'}, COUNTS_BY_NAME),
    ('partitions', Settings.partitions_for, '*=2,embed*=8', {'embed0': 2}),
    ('partitions', Settings.partitions_for, 'Embed*=8,a=b=3', {'embed0': None, 'a=b': 3}),
    ('partitions', Settings.partitions_for, None, {'decoder': None}),
    ('routes', Settings.route_for, 'embed*=allreduce,out=Servers', ROUTES_BY_NAME),
    ('routes', Settings.route_for, {'embed*': 'allreduce', 'out': ' servers '}, ROUTES_BY_NAME),
    ('routes', Settings.route_for, 'allreduce', {'any': 'allreduce'}),
    ('routes', Settings.route_for, None, {'any': 'auto'}),
    ('staleness', Settings.staleness_for, '*users*=2,*items*=1', {'net_users': 2, 'net_items': 1, 'other': 0}),
    ('wire_dtype', Settings.wire_dtype_for, {'*embed*': 'int8', 'net*': np.float16},
     {'net_embed0_weight': 'int8', 'net_dense0_bias': 'float16', 'other': 'float32'}),
    ('wire_dtype', Settings.wire_dtype_for, None, {'net_weight': 'float32'})])
def test_the_first_pattern_that_matches_counts(name, of_parameter, value, expected):
    settings = resolve({name: value}, {})
    assert {parameter: of_parameter(settings, parameter) for parameter in expected} == expected
    if isinstance(value, str):
        assert resolve({}, {variable(name): value}) == settings


def test_storage_by_pattern():
    settings = resolve({}, {'MXHYBRID_STORAGE': '*users*=/scratch,*items*=memory,*=/slow',
                            'MXHYBRID_STORAGE_MEMORY': '*users*=8G'})
    assert [settings.storage_for(name) for name in ('net_users', 'net_items', 'other')] == [
        ('/scratch', 8 * 1000 ** 3), ('', 0), ('/slow', 0)]
    assert Settings().storage_for('any') == ('', 0)
    assert resolve({'storage_memory': '8G'}, {}).storage_for('any') == ('', 0)


def test_any_table_may_be_stale():
    assert resolve({'staleness': '*users*=2,*items*=1'}, {}).any_stale and not Settings().any_stale
    assert not resolve({'staleness': {'*users*': 0}}, {}).any_stale


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve({}, {}).timeout = 3


# ------------------------------------------------------------------------------------------ wire_dtype


@pytest.mark.parametrize('partitions', ['auto', {'embed*': 'auto', '*': 2}])
@pytest.mark.parametrize('wire_dtype', ['float16', 'int8', 'embed*=int8,*=float32'])
def test_tables_that_are_rounded_are_not_searched(partitions, wire_dtype):
    text = problem({'partitions': partitions}, {'MXHYBRID_WIRE_DTYPE': wire_dtype})
    assert "partitions='auto'" in text and 'wire_dtype=%r' % wire_dtype in text and 'counts' in text
    resolve({'partitions': partitions, 'wire_dtype': 'float32'}, {})


def test_wire_types_of_any_parameter_are_known():
    settings = resolve({'wire_dtype': {'*embed*': 'int8', 'net*': np.float16}}, {})
    assert settings.rounds and settings.may_travel_as('int8') and settings.may_travel_as('float16')
    assert resolve({'wire_dtype': 'float16'}, {}).may_travel_as('float16') and not Settings().rounds


def test_int8_needs_the_lane():
    text = problem({'wire_dtype': 'a*=int8', 'row_transport': 'ps-lite'})
    assert text.startswith("wire_dtype='a*=int8' needs the lane, which row_transport='ps-lite' rules out: use float16")
    resolve({'wire_dtype': 'float16', 'row_transport': 'ps-lite'}, {})


# ------------------------------------------------------------------------------------------ wrong values

COUNTS = [True, False, 'many', '', '2.5', 2.5, -1, '-3', 0, '0', [], '--4', '+-5', '²']
PATHS = [3, '', ' ', b'bytes', 'a\0b', True]
#: Settings, wrong values, the words after the value, and other words; {name} stands for the setting or its variable.
WRONG_VALUES = [
    (['servers_per_host', 'partitions'], COUNTS, ' is', ['at least 1']),
    (['on_demand_rows'], ['yes!', 2, '', [], 'none'], ' is neither on nor off: use 1 or 0', []),
    (['partition_file'], [3, '', True], ' is not a path', []),
    (['trace', 'metrics', 'tensorboard'], PATHS, ' is not a path', ['leave it out']),
    (['routes'], ['ps', True, 3, ''], ' is not a route', ["'auto'", "'servers'", "'allreduce'"]),
    (['storage'], [3, 'a\0b'], " is not a directory: give a path, or 'memory'", []),
    (['timeout'], ['soon', '', 0, -1, '-2', 'nan', 'inf', float('nan'), [], True], ' is not',
     ['seconds above 0', '{name}=120']),
    (['stall_timeout'], [-1, '-1', False], ' is not a number of seconds above 0', ['{name}=120, or 0 for never']),
    (['silence_timeout'], [2, '2'], ' is too short', []),
    (['log_level'], ['loud', 10, True, 'Level 7'], ' is not a log level', ['DEBUG', 'INFO', 'WARNING', 'ERROR']),
    (['wire_dtype'], ['half', 'fp16', 'bfloat16', 'float64', 'Float16', '', 16, True, []], ' is not a type',
     ["'float32', 'float16' or 'int8'", "'embed*=int8,*=float16'"]),
    (['partitions', 'routes', 'wire_dtype'], ['embed*=1,out', '=4', {'': 4}, {7: 4}, {None: 4}], ': ', ['embed*']),
]


@pytest.mark.parametrize('name, value, says, words', [
    (name, value, says, words) for names, values, says, words in WRONG_VALUES for name in names for value in values])
def test_wrong_values_name_setting_value_and_fix(name, value, says, words):
    texts = {name: problem({name: value})}
    if isinstance(value, str) and value.strip():  # an empty variable is none
        texts[variable(name)] = problem({}, {variable(name): value})
    for shown, text in texts.items():
        beginning = '%s=%r%s' % (shown, value, says)
        assert text.startswith(beginning)
        assert all(word.format(name=shown) in text[len(beginning):] for word in words)


@pytest.mark.parametrize('name, value, says, words', [
    ('partitions', {'embed*': 0}, '[embed*]=0 is', ['at least 1']),
    ('partitions', {'embed*': True}, '[embed*]=True is', ['at least 1']),
    ('partitions', {'embed*': None}, '[embed*]=None is', ['at least 1']),
    ('partitions', 'embed*=0', "[embed*]='0' is", ['at least 1']),
    ('partitions', 'embed*=many', "[embed*]='many' is", ['at least 1']),
    ('partitions', 'embed*=', "[embed*]='' is", ['at least 1']),
    ('partitions', 'embed*=-1', "[embed*]='-1' is", ['at least 1']),
    ('routes', 'embed*=fast', "[embed*]='fast' is not a route", ["'auto'", "'servers'", "'allreduce'"]),
    ('routes', {'embed*': None}, '[embed*]=None is not a route', ["'auto'", "'servers'", "'allreduce'"]),
    ('routes', 'embed*=', "[embed*]='' is not a route", ["'auto'", "'servers'", "'allreduce'"]),
    ('storage', '*users*=', "[*users*]='' is not a directory: give a path, or 'memory'", []),
    ('storage', {'u': None}, "[u]=None is not a directory: give a path, or 'memory'", []),
    ('wire_dtype', {'embed*': 'int4'}, "[embed*]='int4' is not a type", []),
    *[('storage_memory', {'u*': value}, '[u*]=%r is not a size of at least 1 MB: give bytes' % (value,), [])
      for value in ('8X', '0', '-1', '1k', 'lots', True, None, float('nan'))],
    *[('staleness', {'u*': value}, '[u*]=%r is not a number of steps: give an integer from 0 to 16' % (value,), [])
      for value in ('-1', 17, '1.5', True, None, 'many', '')]])
def test_wrong_values_of_a_pattern_name_the_pattern(name, value, says, words):
    for shown, text in [(name, problem({name: value}))] + [
            (variable(name), problem({}, {variable(name): text})) for text in [value] if isinstance(text, str)]:
        assert text.startswith(shown + says)
        assert all(word in text for word in words)


# ------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize('name, text, written', [
    ('routes', 'Servers', "'servers'"), ('routes', 'emb*=servers, *=allreduce', "'emb*=servers,*=allreduce'"),
    ('staleness', '2', '2'), ('staleness', 'a*=1', "'a*=1'"),
    ('storage', 'a*=/a/b,*=Memory', "'a*=/a/b,*=memory'"), ('storage_memory', '8M', '8000000'),
    ('routes', 'emb*=servers', "'emb*=servers'"), ('partitions', '8', '8'), ('partitions', 'auto', "'auto'"),
    ('partitions', 'a=b*=8,*=2', "'a=b*=8,*=2'"), ('servers_per_host', '2', '2'), ('on_demand_rows', 'off', '0'),
    ('on_demand_rows', 'on', '1'), ('wire_dtype', 'float16', "'float16'"),
    ('wire_dtype', 'a*=int8, *=float16', "'a*=int8,*=float16'")])
def test_values_are_shown_as_a_user_writes_them(name, text, written):
    value = getattr(resolve({}, {variable(name): text}), name)
    for received in (value, json.loads(json.dumps(value))):
        assert as_written(received) == written
    again = written.strip("'")
    assert getattr(resolve({}, {variable(name): again}), name) == value


def test_a_setting_without_a_value_is_not_set():
    assert as_written(Settings().partitions) == 'not set'
    assert as_written(Settings().routes) == 'not set'
    assert as_written(resolve({'routes': 'auto'}, {}).routes) == "'auto'"


def test_settings_that_differ_are_named_with_ranks():
    same, other = (resolve({'partitions': value}, {}).shared() for value in ('embed*=8', 'embed*=4'))
    check_equal([same, same, same])
    with pytest.raises(SettingError) as caught:
        check_equal([same, same, other])
    assert str(caught.value) == ("MXHYBRID_PARTITIONS is 'embed*=8' on worker 0 but 'embed*=4' on worker 2: give all "
                                 "workers the same value")


def test_the_help_of_create_shows_every_default():
    text = mxhybrid.create.__doc__
    for name in ('partitions, MXHYBRID_PARTITIONS=not set', 'on_demand_rows, MXHYBRID_ON_DEMAND_ROWS=1',
                 'stall_timeout, MXHYBRID_STALL_TIMEOUT=600.0'):
        assert '\n        %s\n' % name in text
    assert all('\n        %s, MXHYBRID_%s=' % (name, name.upper()) in text for name in DECLARED)
