"""The in-process cluster: the object store of the local backend, and what tests run the operator against.

`store.py` holds the objects and keeps the API server's promises about them; `cluster.py` puts the `Cluster` verbs and
the world's own verbs (a user's, a kubelet's) on top. One event loop owns it; nothing here locks.
"""

from trainjob_operator.memory.cluster import Call, Faults, MemoryCluster, Moment
from trainjob_operator.memory.store import ChangeType, ObjectChange

__all__ = ["Call", "ChangeType", "Faults", "MemoryCluster", "Moment", "ObjectChange"]
