"""Build a cluster, start something on it, and wait to be interrupted."""
import time

from lab.cluster import EmulatedCluster

with EmulatedCluster(hosts=2) as cluster:
    cluster.start(1, ['sleep', '600'])
    print('cluster is up:', *(host.namespace for host in cluster.hosts), flush=True)
    time.sleep(600)
