"""The workers' side of a distributed store (``mx.kv.create("dist_sync")`` and its kin)."""
