"""What a process sees of its host and of the host's neighbours."""
import socket

from jobs import report

name = socket.gethostname()
report(0, name=name, addresses={other: socket.gethostbyname(other) for other in ('hosta', 'hostb')},
       interfaces=sorted(name for _, name in socket.if_nameindex()))
