"""The memory of the processes of a job, as its workers see it."""
import psutil


def servers_of_this_job():
    """Return the processes of the parameter servers, of all launchers, in the order of their ids."""
    this = psutil.Process()
    relatives = this.children() + (this.parent().children(recursive=True) if this.parent() else [])
    servers = {}
    for process in relatives:
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        if environ.get('MXHYBRID_ROLE', environ.get('DMLC_ROLE')) == 'server' and 'python' in process.name():
            servers[process.pid] = process
    return [servers[pid] for pid in sorted(servers)]


def resident_mb(processes=None):
    """Return the resident memory of processes together, by default of this one, including shared memory."""
    processes = [psutil.Process()] if processes is None else processes
    return sum(process.memory_info().rss for process in processes) / 1e6
