import resource

import pytest
import torch

from kvcache.layout import KvLayout
from kvcache.pool_memory import PoolMemory

LAYOUT = KvLayout(num_layers=2, block_size=4, num_kv_heads=3, head_dim=8, dtype=torch.bfloat16, model="m")


def filled(num_blocks: int = 8) -> PoolMemory:
    memory = PoolMemory(LAYOUT, num_blocks)
    memory.tensor.copy_(torch.arange(memory.tensor.numel()).view(memory.tensor.shape))
    return memory


def bytes_of(memory: PoolMemory, block: int) -> bytes:
    return memory.tensor[block].clone().view(-1).view(torch.uint8).numpy().tobytes()


def test_keys_and_values_are_views_of_the_pool() -> None:
    memory = PoolMemory(LAYOUT, 8)
    memory.keys(1)[3].fill_(5)
    memory.values(0)[3].fill_(7)
    assert memory.keys(1).shape == (8, 4, 3, 8)
    assert bool((memory.tensor[3, 1, 0] == 5).all()) and bool((memory.tensor[3, 0, 1] == 7).all())
    assert bool((memory.tensor[3, 0, 0] == 0).all())


def test_block_views_are_the_bytes_of_the_blocks_in_the_order_asked() -> None:
    memory = filled()
    views = memory.block_views([2, 3, 4, 7, 6, 0])
    assert [view.nbytes // LAYOUT.block_bytes for view in views] == [3, 1, 1, 1]
    assert b"".join(views) == b"".join(bytes_of(memory, block) for block in [2, 3, 4, 7, 6, 0])


def test_writing_a_view_writes_the_pool() -> None:
    memory = filled()
    landing = memory.landing([5])
    landing[0][:] = bytes_of(memory, 1)
    memory.write_in([5], landing)
    assert bytes_of(memory, 5) == bytes_of(memory, 1)


def test_copy_block_copies_all_layers_and_nothing_else() -> None:
    memory = filled()
    before = [bytes_of(memory, block) for block in range(8)]
    memory.copy_block(2, 6)
    assert [bytes_of(memory, block) for block in range(8)] == [*before[:6], before[2], before[7]]


def test_addresses_are_one_block_apart() -> None:
    memory = PoolMemory(LAYOUT, 4)
    assert memory.address(0) == memory.tensor.data_ptr()
    assert memory.address(3) - memory.address(2) == LAYOUT.block_bytes == memory.tensor[1].nbytes


@pytest.mark.parametrize("block", [-1, 4])
def test_ids_out_of_range_are_refused(block: int) -> None:
    memory = PoolMemory(LAYOUT, 4)
    with pytest.raises(IndexError):
        memory.block_views([0, block])
    with pytest.raises(IndexError):
        memory.address(block)


def test_a_large_pool_costs_no_memory_until_it_is_used() -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = PoolMemory(LAYOUT, (4 << 30) // LAYOUT.block_bytes)
    assert bool((memory.tensor[-1] == 0).all())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 256 << 10


class StagedMemory(PoolMemory):
    """Takes the path of a device whose memory the host cannot address."""

    @property
    def is_host(self) -> bool:
        return False


def test_staged_copies_carry_the_same_bytes() -> None:
    source, sink = StagedMemory(LAYOUT, 8), StagedMemory(LAYOUT, 8)
    source.tensor.copy_(filled().tensor)
    (landed,) = sink.landing([6, 1])
    landed[:] = source.read_out([3, 4])[0]
    sink.write_in([6, 1], [landed])
    assert [bytes_of(sink, 6), bytes_of(sink, 1)] == [bytes_of(source, 3), bytes_of(source, 4)]
    assert bool((sink.tensor[[0, 2, 3, 4, 5, 7]] == 0).all())
