"""etcd's KV service over the built-in store."""

from collections.abc import Callable
from typing import Any

from registry.embedded.store import EtcdStore, StoredKey, Transaction
from registry.embedded.store_errors import KeyNotFound, LeaseGiven, RevisionInFuture, TooManyOperations, ValueGiven
from registry.etcd import wire

MAX_TXN_OPERATIONS = 128  # etcd's own default


class KVService:
    """`header` makes the response header for the store's revision at that moment."""

    def __init__(self, store: EtcdStore, header: Callable[[], Any]) -> None:
        self._store = store
        self._header = header

    async def Range(self, request: Any, context: Any) -> Any:
        return self._range(request)

    async def Put(self, request: Any, context: Any) -> Any:
        with self._store.transaction() as transaction:
            answer = _put(transaction, request)
        answer.header.CopyFrom(self._header())
        return answer

    async def DeleteRange(self, request: Any, context: Any) -> Any:
        with self._store.transaction() as transaction:
            answer = self._delete_range(transaction, request)
        answer.header.CopyFrom(self._header())
        return answer

    async def Txn(self, request: Any, context: Any) -> Any:
        with self._store.transaction() as transaction:
            answer = self._txn(transaction, request)
        answer.header.CopyFrom(self._header())
        return answer

    async def Compact(self, request: Any, context: Any) -> Any:
        self._store.compact(request.revision)
        return wire.CompactionResponse(header=self._header())

    def _range(self, request: Any) -> Any:
        kvs = self._store.range(request.key, request.range_end, request.revision or None)
        total = len(kvs)
        kvs = _within_revisions(kvs, request)
        if request.sort_order != wire.RangeRequest.NONE or request.sort_target != wire.RangeRequest.KEY:
            kvs.sort(key=_sort_key(request), reverse=request.sort_order == wire.RangeRequest.DESCEND)
        shown = kvs[: request.limit] if request.limit > 0 else kvs
        answer = wire.RangeResponse(header=self._header(), count=total, more=len(shown) < len(kvs))
        if not request.count_only:
            answer.kvs.extend(key_value_message(kv, keys_only=request.keys_only) for kv in shown)
        return answer

    def _delete_range(self, transaction: Transaction, request: Any) -> Any:
        names = [kv.key for kv in self._store.range(request.key, request.range_end)]
        deleted = [kv for kv in (transaction.delete(name) for name in names) if kv is not None]
        answer = wire.DeleteRangeResponse(deleted=len(deleted))
        if request.prev_kv:
            answer.prev_kvs.extend(key_value_message(kv) for kv in deleted)
        return answer

    def _txn(self, transaction: Transaction, request: Any) -> Any:
        if max(len(request.compare), len(request.success), len(request.failure)) > MAX_TXN_OPERATIONS:
            raise TooManyOperations
        succeeded = all(self._holds(compare) for compare in request.compare)
        operations = request.success if succeeded else request.failure
        return wire.TxnResponse(
            succeeded=succeeded, responses=[self._operation(transaction, operation) for operation in operations]
        )

    def _operation(self, transaction: Transaction, operation: Any) -> Any:
        match operation.WhichOneof("request"):
            case "request_range":
                if operation.request_range.revision > self._store.revision:
                    raise RevisionInFuture
                return wire.ResponseOp(response_range=self._range(operation.request_range))
            case "request_put":
                return wire.ResponseOp(response_put=_put(transaction, operation.request_put))
            case "request_delete_range":
                deleted = self._delete_range(transaction, operation.request_delete_range)
                return wire.ResponseOp(response_delete_range=deleted)
            case "request_txn":
                return wire.ResponseOp(response_txn=self._txn(transaction, operation.request_txn))
            case _:
                raise KeyNotFound

    def _holds(self, compare: Any) -> bool:
        """A range must hold for every key, and an absent key counts as all zeros but has no value, as in etcd."""
        kvs: list[StoredKey | None] = list(self._store.range(compare.key, compare.range_end))
        if not kvs:
            if compare.target == wire.Compare.VALUE:
                return False
            kvs = [None]
        return all(_compares(kv, compare) for kv in kvs)


def _put(transaction: Transaction, request: Any) -> Any:
    if request.ignore_value and request.value:
        raise ValueGiven
    if request.ignore_lease and request.lease:
        raise LeaseGiven
    value = None if request.ignore_value else request.value
    before = transaction.put(request.key, value, request.lease or None, keep_lease=request.ignore_lease)
    answer = wire.PutResponse()
    if request.prev_kv and before is not None:
        answer.prev_kv.CopyFrom(key_value_message(before))
    return answer


def key_value_message(kv: StoredKey, *, keys_only: bool = False) -> Any:
    """etcd's message for a stored key."""
    return wire.KeyValue(
        key=kv.key,
        value=b"" if keys_only else kv.value,
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        version=kv.version,
        lease=kv.lease_id or 0,
    )


def _compares(kv: StoredKey | None, compare: Any) -> bool:
    have: int | bytes
    want: int | bytes
    match compare.target:
        case wire.Compare.VERSION:
            have, want = (kv.version if kv else 0), compare.version
        case wire.Compare.CREATE:
            have, want = (kv.create_revision if kv else 0), compare.create_revision
        case wire.Compare.MOD:
            have, want = (kv.mod_revision if kv else 0), compare.mod_revision
        case wire.Compare.LEASE:
            have, want = (kv.lease_id or 0 if kv else 0), compare.lease
        case _:
            have, want = (kv.value if kv else b""), compare.value
    order = (have > want) - (have < want)  # type: ignore[operator]  # both are of one type, by the target
    match compare.result:
        case wire.Compare.EQUAL:
            return order == 0
        case wire.Compare.NOT_EQUAL:
            return order != 0
        case wire.Compare.GREATER:
            return order > 0
        case _:
            return order < 0


def _within_revisions(kvs: list[StoredKey], request: Any) -> list[StoredKey]:
    return [
        kv
        for kv in kvs
        if request.min_mod_revision <= kv.mod_revision
        and request.min_create_revision <= kv.create_revision
        and (not request.max_mod_revision or kv.mod_revision <= request.max_mod_revision)
        and (not request.max_create_revision or kv.create_revision <= request.max_create_revision)
    ]


def _sort_key(request: Any) -> Callable[[StoredKey], Any]:
    match request.sort_target:
        case wire.RangeRequest.VERSION:
            return lambda kv: kv.version
        case wire.RangeRequest.CREATE:
            return lambda kv: kv.create_revision
        case wire.RangeRequest.MOD:
            return lambda kv: kv.mod_revision
        case wire.RangeRequest.VALUE:
            return lambda kv: kv.value
        case _:
            return lambda kv: kv.key
