"""Combines the findings of several workers, and adds those that only a comparison shows."""
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from . import hosts as host_checks, settings as setting_checks, software, storage as storage_checks
from .findings import ADVICE, FAILED, FINE, Finding

#: Seconds by which the clocks of hosts may differ without advice.
_SKEW_S = 1.0

GROUP = 'Job'
#: Headings, in the order in which they are shown.
_GROUPS = [software.GROUP, setting_checks.GROUP, host_checks.GROUP, GROUP]


@dataclass
class Report:
    """The findings of one worker."""

    rank: int
    host: str
    findings: List[Finding]

    @classmethod
    def from_json(cls, value: Dict[str, Any]) -> 'Report':
        """Return the report of which `value`, perhaps sent as JSON, is ``dataclasses.asdict``."""
        return cls(value['rank'], value['host'], [Finding(**finding) for finding in value['findings']])


@dataclass
class SharedFinding:
    """A finding, and the workers that share it."""

    finding: Finding
    #: Hosts or workers as text; empty for all of them.
    where: str
    ranks: List[int]


def _all_findings(reports: List[Report]) -> List[Tuple[Report, Finding]]:
    return [(report, finding) for report in reports for finding in report.findings]


def _where(ranks: List[int], reports: List[Report]) -> str:
    """Return `ranks` as text: names of hosts if `ranks` has all of their workers, otherwise numbers of workers.

    The text is empty if `ranks` has all workers that made `reports`.
    """
    if len(ranks) == len(reports):
        return ''
    hosts = list(dict.fromkeys(report.host for report in reports if report.rank in ranks))
    if all(report.rank in ranks for report in reports if report.host in hosts):
        return ', '.join(hosts)
    return 'worker%s %s' % ('s' * (len(ranks) > 1), ', '.join(map(str, ranks)))


def merge_findings(reports: List[Report]) -> List[SharedFinding]:
    """Put equal findings together, group by group."""
    checks: Dict[Tuple[str, str], Dict[Tuple[str, str, str], List[Any]]] = {}
    for report, finding in _all_findings(reports):
        results = checks.setdefault((finding.group, finding.name), {})
        key = finding.level, finding.text, finding.remedy
        results.setdefault(key, [finding, []])[1].append(report.rank)
    shared = []
    for results in checks.values():
        # Some checks are made by the first worker of a host only, for all workers there.
        checked = [report for report in reports if any(report.rank in ranks for _, ranks in results.values())]
        shared += [SharedFinding(finding, _where(ranks, checked), ranks) for finding, ranks in results.values()]
    return sorted(shared, key=lambda entry: _GROUPS.index(entry.finding.group))


def _versions(reports: List[Report]) -> List[Finding]:
    """Check that all workers have the same versions of packages."""
    findings = []
    for name in ('python', 'numpy', 'mxnet', 'horovod', 'mxhybrid'):
        by_version: Dict[str, List[int]] = {}
        for report, finding in _all_findings(reports):
            if finding.name == name and 'version' in finding.data:
                by_version.setdefault(finding.data['version'], []).append(report.rank)
        if len(by_version) > 1:
            text = '%s differs: %s' % (name, '; '.join('%s on %s' % (version, _where(ranks, reports))
                                                       for version, ranks in by_version.items()))
            level = ADVICE if name in ('python', 'numpy') else FAILED
            findings.append(Finding(GROUP, 'same ' + name, level, text, 'install the same version on all hosts'))
    return findings or [Finding(GROUP, 'versions', FINE, 'all workers have the same versions')]


def _names(reports: List[Report]) -> List[Finding]:
    """Check, for a job on several hosts, that no host's name is a loopback address."""
    by_name: Dict[str, Finding] = {}
    for report, finding in _all_findings(reports):
        address = finding.data.get('address', '127.')
        if finding.name == 'name' and finding.level != FAILED and address.startswith('127.'):
            name = 'name of ' + report.host
            by_name[name] = Finding(GROUP, name, FAILED,
                                    'the job spans several hosts, but on %s %s' % (report.host, finding.text),
                                    'give the name its network address in /etc/hosts there')
    return list(by_name.values())


def _clocks(offsets: List[float], reports: List[Report]) -> Finding:
    spread = max(offsets) - min(offsets)
    data = {'seconds': offsets}
    if spread <= _SKEW_S:
        return Finding(GROUP, 'clocks', FINE, 'clocks of the workers differ by at most %.1f ms' % (1000 * spread),
                       data=data)
    worst = max(range(len(offsets)), key=lambda rank: abs(offsets[rank]))
    host = next((report.host for report in reports if report.rank == worst), 'worker %d' % worst)
    return Finding(GROUP, 'clocks', ADVICE, 'the clock of %s is %.1f s %s that of worker 0'
                   % (host, abs(offsets[worst]), 'ahead of' if offsets[worst] > 0 else 'behind'),
                   'synchronise the clocks (NTP): times in logs and metrics of the hosts do not agree', data)


def _storage(reports: List[Report]) -> List[Finding]:
    """Tell, for a job on several hosts, whether directories for rows are on the same file system."""
    hosts: Dict[str, Dict[str, List[str]]] = {}
    for report, finding in _all_findings(reports):
        if finding.name.startswith(storage_checks.NAME) and 'identity' in finding.data:
            sharing = hosts.setdefault(finding.name, {}).setdefault(finding.data['identity'], [])
            if report.host not in sharing:
                sharing.append(report.host)
    findings = []
    for name, by_identity in hosts.items():
        directory = name[len(storage_checks.NAME):]
        shared = [', '.join(names) for names in by_identity.values() if len(names) > 1]
        if shared:
            text = '%s is the same file system on %s: their tables share its room' % (directory, '; on '.join(shared))
        else:
            text = '%s is another file system on each host' % directory
        if shared or len(by_identity) > 1:
            findings.append(Finding(GROUP, name, FINE, text))
    return findings


def compare(reports: List[Report], workers: int, meeting: Optional[Dict[str, Any]]) -> List[Finding]:
    """Return the findings that only a comparison of the reports that arrived shows; `workers` is the number of all.

    `meeting` is the answer of :mod:`mxhybrid.commands.checks.try_joining` in worker 0, if there is one.
    """
    missing = sorted(set(range(workers)) - {report.rank for report in reports})
    findings = []
    if missing:
        findings.append(Finding(GROUP, 'workers', FAILED, 'no report from worker%s %s'
                                % ('s' * (len(missing) > 1), ', '.join(map(str, missing))),
                                'look at their output above, and check that their hosts can be reached'))
    findings += _versions(reports)
    if len({report.host for report in reports}) > 1:
        findings += _names(reports) + _storage(reports)
    if meeting is not None:
        findings.append(_clocks(meeting['offsets'], reports))
        text = '%d workers and %d server%s joined the job' % (meeting['workers'], meeting['servers'],
                                                              's' * (meeting['servers'] != 1))
        if meeting['right']:
            findings.append(Finding(GROUP, 'joining', FINE, text + '; sums of rows and of a dense array are right',
                                    data={'files': meeting['files']}))
        else:
            findings.append(Finding(GROUP, 'joining', FAILED, text + ', but a sum was wrong',
                                    'please report it, with the output of: mxhybrid env'))
    return findings
