"""`encoder-pool bench service`: a whole service under load, HTTP to HTTP, beside its tower fed from memory.

The tower is measured in a process of its own and gone before the service starts, so that one GPU is enough.
The service is a file's own but for three things: it has no cache, one replica, and one application. Clients
are processes of their own, which know nothing of the service but its address.
"""
