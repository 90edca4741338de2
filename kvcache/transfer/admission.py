"""Who may pull what."""

from collections.abc import Sequence

from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.export import Export
from kvcache.transfer.export_table import ExportTable
from kvcache.transfer.payloads import Claim
from kvcache.transfer.refusal import Refusal


class Admission:
    """Judges claims. With `secrets`, only pullers that know one of them are served."""

    def __init__(self, table: ExportTable, layout: bytes, secrets: Sequence[bytes], max_connections: int) -> None:
        self._table = table
        self._layout = layout
        self._secrets = tuple(secrets)
        self._max_connections = max_connections

    def judge(self, claim: Claim, num_connections: int) -> Export | Refusal:
        """Returns the export that is claimed, or why not. Whoever lacks the secret or the token learns nothing else."""
        if self._secrets and not claim.is_proven(self._secrets):
            return Refusal(TransferFailure.REFUSED, "the puller does not know this cluster's secret")
        export = self._table.find(claim)
        if export is None:
            return Refusal(TransferFailure.REFUSED, "unknown hand-off")
        if (end := export.state().end) is not None:
            return Refusal.of_ended(end)
        if claim.layout != self._layout:
            return Refusal(TransferFailure.LAYOUT_MISMATCH, "blocks here have another layout")
        if num_connections >= self._max_connections:
            return Refusal(TransferFailure.REFUSED, f"{self._max_connections} transfers are running")
        return export
