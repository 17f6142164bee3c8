"""Findings of several workers taken together: what is equal on all, what differs, what only a comparison shows."""
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from . import hosts as host_checks, settings as setting_checks, software
from .findings import ADVICE, FAILED, FINE, Finding

#: Seconds that clocks of hosts may differ before it is worth a word.
_SKEW_S = 1.0

GROUP = 'Job'
#: Headings, in the order in which they are shown.
_GROUPS = [software.GROUP, setting_checks.GROUP, host_checks.GROUP, GROUP]


@dataclass
class Report:
    """What one worker found."""

    rank: int
    host: str
    findings: List[Finding]

    def as_json(self) -> Dict[str, Any]:
        return {'rank': self.rank, 'host': self.host, 'findings': [one.as_json() for one in self.findings]}

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> 'Report':
        return cls(value['rank'], value['host'], [Finding.from_json(one) for one in value['findings']])


@dataclass
class SharedFinding:
    """A finding, and who made it."""

    finding: Finding
    #: In words; empty for everybody.
    where: str
    ranks: List[int]


def _words(ranks: List[int], reports: List[Report]) -> str:
    """Who of those that made `reports` are `ranks`: hosts if all of their workers are meant, else workers."""
    if len(ranks) == len(reports):
        return ''
    hosts = list(dict.fromkeys(report.host for report in reports if report.rank in ranks))
    if all(report.rank in ranks for report in reports if report.host in hosts):
        return ', '.join(hosts)
    return 'worker%s %s' % ('s' * (len(ranks) > 1), ', '.join(map(str, ranks)))


def merge_findings(reports: List[Report]) -> List[SharedFinding]:
    """Put equal findings together, group by group."""
    found: Dict[Tuple[str, str], Dict[Tuple[str, str, str], List[Any]]] = {}
    for report in reports:
        for one in report.findings:
            same = found.setdefault((one.group, one.name), {})
            same.setdefault((one.level, one.text, one.remedy), [one, []])[1].append(report.rank)
    shared = []
    for same in found.values():
        # Not everybody looks for everything: the first worker of a host does for all there.
        looked = [report for report in reports if any(report.rank in ranks for _, ranks in same.values())]
        shared += [SharedFinding(one, _words(ranks, looked), ranks) for one, ranks in same.values()]
    return sorted(shared, key=lambda one: _GROUPS.index(one.finding.group))


def _versions(reports: List[Report]) -> List[Finding]:
    """Packages must be the same everywhere."""
    found = []
    for name in ('python', 'numpy', 'mxnet', 'horovod', 'mxhybrid'):
        by_version: Dict[str, List[int]] = {}
        for report in reports:
            for one in report.findings:
                if one.name == name and 'version' in one.data:
                    by_version.setdefault(one.data['version'], []).append(report.rank)
        if len(by_version) > 1:
            text = '%s differs: %s' % (name, '; '.join('%s on %s' % (version, _words(ranks, reports))
                                                       for version, ranks in by_version.items()))
            level = ADVICE if name in ('python', 'numpy') else FAILED
            found.append(Finding(GROUP, 'same ' + name, level, text, 'install the same version on all hosts'))
    if not found:
        found = [Finding(GROUP, 'versions', FINE, 'all workers have the same versions')]
    return found


def _names(reports: List[Report]) -> List[Finding]:
    """A name that means loopback, or nothing, is in the way as soon as there are several hosts."""
    found = []
    for report in reports:
        for one in report.findings:
            address = one.data.get('address', '127.')
            if one.name == 'name' and one.level != FAILED and address.startswith('127.'):
                found.append(Finding(GROUP, 'name of ' + report.host, FAILED,
                                     'the job spans several hosts, but on %s %s' % (report.host, one.text),
                                     'give the name its network address in /etc/hosts there'))
    return list({one.name: one for one in found}.values())


def _clocks(offsets: List[float], reports: List[Report]) -> Finding:
    spread = max(offsets) - min(offsets)
    data = {'seconds': offsets}
    if spread <= _SKEW_S:
        return Finding(GROUP, 'clocks', FINE, 'clocks of the workers differ by %.1f ms at most' % (1000 * spread),
                       data=data)
    worst = max(range(len(offsets)), key=lambda rank: abs(offsets[rank]))
    host = next((report.host for report in reports if report.rank == worst), 'worker %d' % worst)
    return Finding(GROUP, 'clocks', ADVICE, 'the clock of %s is %.1f s %s that of worker 0'
                   % (host, abs(offsets[worst]), 'ahead of' if offsets[worst] > 0 else 'behind'),
                   'synchronise clocks (NTP): logs and metrics of hosts will not fit together', data)


def compare(reports: List[Report], workers: int, meeting: Optional[Dict[str, Any]]) -> List[Finding]:
    """What only shows when workers are seen together: the `reports` that arrived, of so many `workers`, and what
    :mod:`mxhybrid.commands.checks.try_joining` answered in worker 0, if it did.
    """
    missing = sorted(set(range(workers)) - {report.rank for report in reports})
    found = []
    if missing:
        found.append(Finding(GROUP, 'workers', FAILED, 'nothing was heard from worker%s %s'
                             % ('s' * (len(missing) > 1), ', '.join(map(str, missing))),
                             'see their output above, and whether their hosts can be reached'))
    found += _versions(reports)
    if len({report.host for report in reports}) > 1:
        found += _names(reports)
    if meeting is not None:
        found.append(_clocks(meeting['offsets'], reports))
        text = '%d workers and %d server%s joined the job' % (meeting['workers'], meeting['servers'],
                                                              's' * (meeting['servers'] != 1))
        if meeting['right']:
            found.append(Finding(GROUP, 'joining', FINE, text + '; sums of rows and of a dense array are right',
                                 data={'files': meeting['files']}))
        else:
            found.append(Finding(GROUP, 'joining', FAILED, text + ', but a sum was wrong',
                                 'please report it, with the output of: mxhybrid env'))
    return found
