"""An answer's blocks as the items of a response's output."""

from enum import Enum

from master.edge.conversation.content_blocks import Block, BlockKind

PREFIXES = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}


class ItemStatus(Enum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"


def item_id(block: Block, request_id: str) -> str:
    return f"{PREFIXES[block.kind]}_{request_id}_{block.index}"


def output_item(block: Block, request_id: str, status: ItemStatus) -> dict[str, object]:
    """An item has nothing of its block while it is in progress, and all of it afterwards."""
    is_begun = status is not ItemStatus.IN_PROGRESS
    item: dict[str, object] = {"id": item_id(block, request_id), "status": status.value}
    match block.kind:
        case BlockKind.TEXT:
            content = [content_part(block)] if is_begun else []
            return item | {"type": "message", "role": "assistant", "content": content}
        case BlockKind.REASONING:
            content = [content_part(block)] if is_begun else []
            return item | {"type": "reasoning", "summary": [], "content": content}
        case BlockKind.CALL:
            assert block.call is not None
            return item | {
                "type": "function_call",
                "call_id": block.call.id,
                "name": block.call.name,
                "arguments": block.text if is_begun else "",
            }


def content_part(block: Block) -> dict[str, object]:
    """A block of text or reasoning, as far as it has come."""
    if block.kind is BlockKind.REASONING:
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": block.logprobs}
