"""Reports how a process sees its host and the neighbours of the host."""
import socket
from pathlib import Path

from lab.reports import report

name = socket.gethostname()
report(0, name=name, addresses={other: socket.gethostbyname(other) for other in ('hosta', 'hostb')},
       interfaces=sorted(name for _, name in socket.if_nameindex()),
       congestion_control=Path('/proc/sys/net/ipv4/tcp_congestion_control').read_text().strip())
