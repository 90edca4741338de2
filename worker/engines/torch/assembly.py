"""The torch engine, put together from the worker's flags."""

import torch

from config.flags import FlagError
from kvcache.block_pool import BlockPool
from kvcache.pool_memory import PoolMemory
from kvcache.transfer.client import TransferClient
from kvcache.transfer.server import TransferServer
from kvcache.transfer.transports.table import named
from worker.config import Quantization, WorkerConfig
from worker.engines.compute_engine import EngineIdentity
from worker.engines.limits import EngineLimits
from worker.engines.torch.engine import TorchEngine
from worker.engines.torch.faulty_runner import FaultyRunner
from worker.engines.torch.grammar import Grammars
from worker.engines.torch.kernels.library import load_library
from worker.engines.torch.kv_transfer import KvPort
from worker.engines.torch.loaded_model import LoadedModel, ModelError
from worker.engines.torch.loader import load_model
from worker.engines.torch.network_choice import with_checked_network
from worker.engines.torch.runner import ModelRunner, StepRunner
from worker.engines.torch.sampling.compiled_drawer import CompiledDrawer
from worker.engines.torch.sampling.drawing import Drawer, TorchDrawer
from worker.engines.torch.sampling.sampler import Sampler
from worker.engines.torch.scheduler import Scheduler
from worker.engines.torch.textless import find_textless
from worker.faults.frames import FrameFaults
from worker.faults.plan import NO_FAULTS, FaultPlan


def assemble(config: WorkerConfig, advertise_host: str, faults: FaultPlan = NO_FAULTS) -> TorchEngine:
    """An engine that is not started yet: loads the model and starts the transfer port.

    Raises FlagError naming what cannot be used.
    """
    if config.model is None:
        raise FlagError("model", "unset: name the folder of a model")
    torch.set_num_threads(config.threads)
    device = _device(config.devices)
    try:
        loaded = load_model(
            config.model,
            device,
            config.dtype.value,
            kv_dtype_name=config.kv_dtype.value,
            is_batch_invariant=config.batch_invariant,
            is_int8=config.quantization is Quantization.INT8,
        )
        max_context = _max_context(config, loaded)
        loaded = with_checked_network(loaded, max_context, config.threads)
    except ModelError as error:
        raise FlagError("model", str(error)) from error
    layout = loaded.layout(config.block_size)
    num_blocks = config.num_blocks or config.max_memory // layout.block_bytes
    if num_blocks < 1:
        raise FlagError("max_memory", f"{config.max_memory} bytes hold no block of {layout.block_bytes} bytes")
    memory = PoolMemory(layout, num_blocks, device)
    port = _transfer_port(config, advertise_host, memory, faults)
    pool = BlockPool(num_blocks, config.enable_prefix_cache)
    scheduler = Scheduler(
        pool,
        config.block_size,
        max_tokens_per_step=config.max_tokens_per_step,
        max_num_seqs=config.max_num_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
        max_step_s=config.max_step_s,
    )
    limits = EngineLimits(
        max_context=max_context,
        vocab_size=loaded.vocab_size,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_num_seqs=config.max_num_seqs,
    )
    runner: StepRunner = ModelRunner(loaded, memory)
    if faults.step is not None:
        runner = FaultyRunner(runner, faults.step)
    return TorchEngine(
        runner,
        scheduler,
        port,
        Grammars(config.model, loaded.eos_ids),
        Sampler(find_textless(config.model, loaded), _drawer(loaded, config.threads)),
        identity=EngineIdentity(loaded.served, layout.fingerprint(), port.address),
        limits=limits,
    )


def _drawer(loaded: LoadedModel, num_threads: int) -> Drawer:
    library = load_library() if loaded.model.device.type == "cpu" else None
    return TorchDrawer() if library is None else CompiledDrawer(library, num_threads, loaded.vocab_size)


def _transfer_port(config: WorkerConfig, advertise_host: str, memory: PoolMemory, faults: FaultPlan) -> KvPort:
    """Started. Raises FlagError when its address cannot be had."""
    layout = memory.layout.fingerprint()
    keys = config.cluster_keys()
    secrets = [] if keys is None else [key.encode() for key in keys.all]
    tap = None if faults.transfer is None else FrameFaults(faults.transfer)
    server = TransferServer(
        memory,
        layout,
        config.host,
        config.transfer_listen_port,
        advertise_host=advertise_host,
        lease_s=config.kv_lease_s,
        max_connections=config.max_exports,
        secrets=secrets,
        tap=tap,
    )
    try:
        server.start()
    except OSError as error:
        raise FlagError("transfer_listen_port", f"{config.transfer_listen_port}: {error.strerror or error}") from error
    secret = secrets[0] if secrets else None
    client = TransferClient(
        memory,
        layout,
        transports=named(config.transports),
        connect_timeout_s=config.transfer_connect_timeout_s,
        silence_timeout_s=config.transfer_silence_timeout_s,
        secret=secret,
        tap=tap,
    )
    return KvPort(server, client, config.max_num_seqs)


def _max_context(config: WorkerConfig, loaded: LoadedModel) -> int:
    if config.max_context is not None and config.max_context > loaded.max_context:
        raise FlagError("max_context", f"{config.max_context}: the model is made for {loaded.max_context} tokens")
    return config.max_context or loaded.max_context


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FlagError("devices", f"{name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device
