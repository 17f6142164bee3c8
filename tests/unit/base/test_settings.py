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
    """The message of the SettingError that these settings raise."""
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
    with pytest.raises(ValueError):
        resolve({'timeout': -1}, {})
    with pytest.raises(HybridError):
        resolve({'timeout': -1}, {})


@pytest.mark.parametrize('keywords, limits', [
    ({}, (DEFAULT_TIMEOUT_S, DEFAULT_TIMEOUT_S / 2, 600)),
    ({'timeout': 20}, (20, 10, 600)),
    ({'timeout': 2}, (2, 3, 600)),  # three beats at least
    ({'timeout': 20, 'silence_timeout': 50, 'stall_timeout': 0}, (20, 50, 0)),
])
def test_when_the_job_monitor_acts(keywords, limits):
    assert tuple(resolve(keywords, {}).limits) == limits


def test_silence_shorter_than_some_beats_is_refused():
    assert problem({'silence_timeout': 2}).startswith('silence_timeout=2 is too short')
    assert problem({}, {'MXHYBRID_STALL_TIMEOUT': '-1'}).startswith("MXHYBRID_STALL_TIMEOUT='-1' is not a number")
    assert problem({'stall_timeout': False}).startswith('stall_timeout=False is not a number')


# ------------------------------------------------------------------------------------------ counts

WRONG_COUNTS = [True, False, 'many', '', '2.5', 2.5, -1, '-3', 0, '0', [], '--4', '+-5', '²']


@pytest.mark.parametrize('value', WRONG_COUNTS, ids=repr)
@pytest.mark.parametrize('name', ['servers_per_host', 'partitions'])
def test_wrong_counts_name_setting_value_and_fix(name, value):
    text = problem({name: value})
    assert text.startswith('%s=%r is' % (name, value))
    assert 'at least 1' in text


@pytest.mark.parametrize('text', ['many', '2.5', '-3', '0', '--4', '²'])
@pytest.mark.parametrize('name', ['servers_per_host', 'partitions'])
def test_wrong_counts_from_the_environment_name_the_variable(name, text):
    message = problem({}, {variable(name): text})
    assert message.startswith('%s=%r is' % (variable(name), text))
    assert 'at least 1' in message


@pytest.mark.parametrize('value', [4, '4', ' 4 ', '+4'])
def test_counts_may_be_numbers_or_text(value):
    assert resolve({'servers_per_host': value}, {}).servers_per_host == 4
    assert resolve({'partitions': value}, {}).partitions_for('any') == 4


@pytest.mark.parametrize('value, meaning', [(True, True), ('1', True), (' On ', True), ('true', True), (1, True),
                                            (False, False), ('0', False), ('OFF', False), ('false', False)])
def test_switches(value, meaning):
    assert resolve({'on_demand_rows': value}, {}).on_demand_rows is meaning


@pytest.mark.parametrize('value', ['yes!', 2, '', [], 'none'], ids=repr)
def test_wrong_switches_name_setting_value_and_fix(value):
    assert problem({'on_demand_rows': value}) == 'on_demand_rows=%r is neither on nor off: use 1 or 0' % (value,)


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
    text = problem({'partition_file': str(tmp_path)})
    assert 'is a directory' in text and str(tmp_path / 'partitions.json') in text
    for value in (3, '', True):
        assert problem({'partition_file': value}).startswith('partition_file=%r is not a path' % (value,))


def test_errors_about_values_have_the_users_name(tmp_path):
    assert problem({'partition_file': str(tmp_path)}).startswith('partition_file=%r is a directory' % str(tmp_path))
    assert problem({}, {'MXHYBRID_PARTITION_FILE': str(tmp_path)}).startswith('MXHYBRID_PARTITION_FILE=')


# ------------------------------------------------------------------------------------------ patterns


@pytest.mark.parametrize('value', ['embed*=8,out?=3,*=2', {'embed*': 8, 'out?': 3, '*': 2},
                                   ' embed*=8 , out?=3, *=2,', {'embed*': '8', 'out?': '3', '*': '2'}])
def test_the_first_pattern_that_matches_counts(value):
    settings = resolve({'partitions': value}, {})
    assert [settings.partitions_for(name) for name in ('embed0_weight', 'out1', 'out12')] == [8, 3, 2]
    if isinstance(value, str):
        assert resolve({}, {'MXHYBRID_PARTITIONS': value}) == settings


def test_order_decides_between_patterns():
    assert resolve({'partitions': '*=2,embed*=8'}, {}).partitions_for('embed0') == 2


def test_no_match_means_the_default():
    assert resolve({'partitions': {'embed*': 8}}, {}).partitions_for('decoder') is None
    assert resolve({}, {}).partitions_for('decoder') is None


def test_patterns_respect_case_and_equals_signs():
    settings = resolve({'partitions': 'Embed*=8,a=b=3'}, {})
    assert settings.partitions_for('embed0') is None
    assert settings.partitions_for('a=b') == 3


@pytest.mark.parametrize('value, part', [
    ({'embed*': 0}, 'partitions[embed*]=0'), ('embed*=0', "partitions[embed*]='0'"),
    ({'embed*': True}, 'partitions[embed*]=True'), ({'embed*': None}, 'partitions[embed*]=None'),
    ('embed*=many', "partitions[embed*]='many'"), ('embed*=', "partitions[embed*]=''"),
    ('embed*=-1', "partitions[embed*]='-1'"),
])
def test_wrong_counts_of_a_pattern_name_the_pattern(value, part):
    text = problem({'partitions': value})
    assert text.startswith(part + ' is')
    assert 'at least 1' in text


@pytest.mark.parametrize('value', ['embed*=8,decoder', '=4', {'': 4}, {7: 4}, {None: 4}], ids=repr)
def test_wrong_patterns_show_the_value_and_an_example(value):
    text = problem({'partitions': value})
    assert text.startswith('partitions=%r' % (value,))
    assert 'embed*' in text.replace(repr(value), '')


# ------------------------------------------------------------------------------------------ routes


@pytest.mark.parametrize('value', ['embed*=allreduce,out=Servers', {'embed*': 'allreduce', 'out': ' servers '}])
def test_routes_by_pattern(value):
    settings = resolve({'routes': value}, {})
    assert [settings.route_for(name) for name in ('embed0', 'out', 'other')] == ['allreduce', 'servers', 'auto']


def test_tables_are_measured_by_default():
    assert resolve({}, {}).route_for('any') == 'auto'
    assert resolve({'routes': 'allreduce'}, {}).route_for('any') == 'allreduce'


@pytest.mark.parametrize('value, part', [
    ('ps', "routes='ps'"), (True, 'routes=True'), (3, 'routes=3'), ('', "routes=''"),
    ('embed*=fast', "routes[embed*]='fast'"), ({'embed*': None}, 'routes[embed*]=None'),
    ('embed*=', "routes[embed*]=''")])
def test_wrong_routes_name_setting_value_and_fix(value, part):
    text = problem({'routes': value})
    assert text.startswith(part + ' is not a route')
    for way in ('auto', 'servers', 'allreduce'):
        assert "'%s'" % way in text
    if isinstance(value, str) and value:
        assert problem({}, {'MXHYBRID_ROUTES': value}).startswith('MXHYBRID_ROUTES' + part[len('routes'):])


@pytest.mark.parametrize('value', ['embed*=servers,out', '=auto', {'': 'auto'}, {7: 'auto'}], ids=repr)
def test_wrong_patterns_of_routes(value):
    assert problem({'routes': value}).startswith('routes=%r' % (value,))


# ------------------------------------------------------------------------------------------ storage


def test_storage_by_pattern():
    settings = resolve({}, {'MXHYBRID_STORAGE': '*users*=/scratch,*items*=memory,*=/slow',
                            'MXHYBRID_STORAGE_MEMORY': '*users*=8G'})
    assert [settings.storage_for(name) for name in ('net_users', 'net_items', 'other')] == [
        ('/scratch', 8 * 1000 ** 3), ('', 0), ('/slow', 0)]
    assert Settings().storage_for('any') == ('', 0)
    assert resolve({'storage_memory': '8G'}, {}).storage_for('any') == ('', 0)


@pytest.mark.parametrize('value, part', [
    ('*users*=', "storage[*users*]=''"), (3, 'storage=3'), ({'u': None}, 'storage[u]=None'), ('a\0b', 'storage=')])
def test_wrong_directories_name_setting_value_and_fix(value, part):
    text = problem({'storage': value})
    assert text.startswith(part) and "is not a directory: give a path, or 'memory'" in text


@pytest.mark.parametrize('value', ['8X', '0', '-1', '1k', 'lots', True, None, float('nan')], ids=repr)
def test_wrong_sizes_name_setting_value_and_fix(value):
    text = problem({'storage_memory': {'u*': value}})
    assert text.startswith('storage_memory[u*]=%r is not a size of at least 1 MB: give bytes' % (value,))


# ------------------------------------------------------------------------------------------ staleness


def test_staleness_by_pattern():
    settings = resolve({}, {'MXHYBRID_STALENESS': '*users*=2,*items*=1'})
    assert [settings.staleness_for(name) for name in ('net_users', 'net_items', 'other')] == [2, 1, 0]
    assert settings.any_stale and not Settings().any_stale
    assert not resolve({'staleness': {'*users*': 0}}, {}).any_stale


@pytest.mark.parametrize('value', ['-1', 17, '1.5', True, None, 'many', ''], ids=repr)
def test_wrong_numbers_of_steps_name_setting_value_and_fix(value):
    text = problem({'staleness': {'u*': value}})
    assert text.startswith('staleness[u*]=%r is not a number of steps: give an integer from 0 to 16' % (value,))


# ------------------------------------------------------------------------------------------ seconds and levels


@pytest.mark.parametrize('value', ['soon', '', 0, -1, '-2', 'nan', 'inf', float('nan'), [], True], ids=repr)
def test_wrong_timeouts_name_setting_value_and_fix(value):
    text = problem({'timeout': value})
    assert text.startswith('timeout=%r is not' % (value,))
    assert 'seconds above 0' in text and 'timeout=120' in text
    if isinstance(value, str) and value:
        text = problem({}, {'MXHYBRID_TIMEOUT': value})
        assert text.startswith('MXHYBRID_TIMEOUT=%r is not' % value) and 'MXHYBRID_TIMEOUT=120' in text


@pytest.mark.parametrize('value', ['loud', 10, True, 'Level 7'], ids=repr)
def test_wrong_levels_name_setting_value_and_fix(value):
    text = problem({'log_level': value})
    assert text.startswith('log_level=%r is not a log level' % value)
    for level in ('DEBUG', 'INFO', 'WARNING', 'ERROR'):
        assert level in text


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve({}, {}).timeout = 3


# ------------------------------------------------------------------------------------------ paths


@pytest.mark.parametrize('name', ['trace', 'metrics', 'tensorboard'])
@pytest.mark.parametrize('value', [3, '', ' ', b'bytes', 'a\0b', True])
def test_values_that_are_not_paths_are_refused(name, value):
    text = problem({name: value})
    assert text.startswith('%s=%r is not a path' % (name, value)) and 'leave it out' in text


# ------------------------------------------------------------------------------------------ wire_dtype


@pytest.mark.parametrize('value', ['half', 'fp16', 'bfloat16', 'float64', 'Float16', '', 16, True, []], ids=repr)
def test_other_wire_types_are_refused_with_a_list(value):
    text = problem({'wire_dtype': value})
    assert text.startswith('wire_dtype=%r is not a type' % (value,))
    assert "'float32', 'float16' or 'int8'" in text and "'embed*=int8,*=float16'" in text
    if isinstance(value, str) and value:
        assert problem({}, {'MXHYBRID_WIRE_DTYPE': value}).startswith('MXHYBRID_WIRE_DTYPE=%r is not' % value)


@pytest.mark.parametrize('partitions', ['auto', {'embed*': 'auto', '*': 2}])
@pytest.mark.parametrize('wire_dtype', ['float16', 'int8', 'embed*=int8,*=float32'])
def test_tables_that_are_rounded_are_not_searched(partitions, wire_dtype):
    text = problem({'partitions': partitions}, {'MXHYBRID_WIRE_DTYPE': wire_dtype})
    assert "partitions='auto'" in text and 'wire_dtype=%r' % wire_dtype in text and 'counts' in text
    resolve({'partitions': partitions, 'wire_dtype': 'float32'}, {})


def test_float32_travels_unchanged_by_default():
    settings = resolve({}, {})
    assert not settings.rounds and settings.wire_dtype_for('net_weight') == 'float32'
    assert resolve({'wire_dtype': 'float16'}, {}).may_travel_as('float16')


def test_the_first_matching_pattern_gives_the_wire_type():
    settings = resolve({'wire_dtype': {'*embed*': 'int8', 'net*': np.float16}}, {})
    assert [settings.wire_dtype_for(name) for name in ('net_embed0_weight', 'net_dense0_bias', 'other')] == [
        'int8', 'float16', 'float32']
    assert settings.rounds and settings.may_travel_as('int8') and settings.may_travel_as('float16')
    assert problem({'wire_dtype': {'embed*': 'int4'}}).startswith("wire_dtype[embed*]='int4' is not a type")
    assert problem({'wire_dtype': 'embed*=int8,float16'}).startswith(
        "wire_dtype='embed*=int8,float16': every entry must read pattern=type")


def test_int8_needs_the_lane():
    text = problem({'wire_dtype': 'a*=int8', 'row_transport': 'ps-lite'})
    assert text.startswith("wire_dtype='a*=int8' needs the lane, which row_transport='ps-lite' rules out: use float16")
    resolve({'wire_dtype': 'float16', 'row_transport': 'ps-lite'}, {})


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
