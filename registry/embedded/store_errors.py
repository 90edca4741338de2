"""What the built-in etcd answers instead of a result, in etcd's own words, which its clients compare."""


class StoreError(Exception):
    """`code` is the name of a gRPC status."""

    code = "INVALID_ARGUMENT"
    text = "etcdserver: invalid request"

    def __str__(self) -> str:
        return self.text


class EmptyKey(StoreError):
    text = "etcdserver: key is not provided"


class KeyNotFound(StoreError):
    text = "etcdserver: key not found"


class ValueGiven(StoreError):
    text = "etcdserver: value is provided"


class LeaseGiven(StoreError):
    text = "etcdserver: lease is provided"


class DuplicateKey(StoreError):
    text = "etcdserver: duplicate key given in txn request"


class TooManyOperations(StoreError):
    text = "etcdserver: too many operations in txn request"


class LeaseNotFound(StoreError):
    code = "NOT_FOUND"
    text = "etcdserver: requested lease not found"


class LeaseExists(StoreError):
    code = "FAILED_PRECONDITION"
    text = "etcdserver: lease already exists"


class RevisionCompacted(StoreError):
    code = "OUT_OF_RANGE"
    text = "etcdserver: mvcc: required revision has been compacted"


class RevisionInFuture(StoreError):
    code = "OUT_OF_RANGE"
    text = "etcdserver: mvcc: required revision is a future revision"
