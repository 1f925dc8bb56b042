"""A reply's rows to a consumer on the same host as memory: no body, no socket buffer, no copy.

The replica writes the rows of a reply into a `memfd` and answers with a handle: where to knock, and a secret.
The consumer connects to the replica's socket (`AF_UNIX`, in the abstract namespace), shows the secret, is
handed the descriptor (`SCM_RIGHTS`) and maps it. The connection is the lease: while it is open the memory
counts for the replica; to close it is to release the lease.

Why not a file in /dev/shm with a route to release it:

- nothing has a name, so there is nothing to leak or to sweep on a disk that others share. The kernel closes
  what a killed process had open: a dead consumer has released its lease at once, a dead replica's memory
  stays with the consumers that hold it and is gone with the last;
- several replicas are behind one URL, so a request to release a lease would reach any of them; the socket is
  that of the replica that holds it;
- a container's /dev/shm is 64 MiB, and a full one kills whoever writes to it; a `memfd` is bounded by the
  host's memory, of which the replica reserves what it writes before it does.

What both sides must share is a network namespace, as processes of one host or containers of one pod do.
Knows nothing of HTTP, Ray, towers, or what the rows mean.
"""
