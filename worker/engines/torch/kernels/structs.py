"""The structures of `kernels.h`, member by member."""

import ctypes

import torch

INT8 = torch.int8
_NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, INT8: 3}


def type_number(dtype: torch.dtype) -> int:
    """Its `enum type`."""
    return _NUMBERS[dtype]


class NativeNorm(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class NativeProduct(ctypes.Structure):
    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("type", ctypes.c_long),
        ("outputs", ctypes.c_long),
        ("inputs", ctypes.c_long),
    )


class NativeHeads(ctypes.Structure):
    _fields_ = (
        ("num_heads", ctypes.c_long),
        ("num_kv_heads", ctypes.c_long),
        ("head_dim", ctypes.c_long),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("epsilon", ctypes.c_float),
    )


class NativeAttention(ctypes.Structure):
    _fields_ = (("scale", ctypes.c_float), ("window", ctypes.c_long))


class NativeLayer(ctypes.Structure):
    """Of `network.c`."""

    _fields_ = (
        ("before_attention", NativeNorm),
        ("before_mlp", NativeNorm),
        ("qkv", NativeProduct),
        ("output", NativeProduct),
        ("gate_up", NativeProduct),
        ("down", NativeProduct),
        ("heads", NativeHeads),
        ("attention", NativeAttention),
    )


class NativeNetwork(ctypes.Structure):
    """Of `network.c`."""

    _fields_ = (
        ("layers", ctypes.POINTER(NativeLayer)),
        ("last_norm", NativeNorm),
        ("head", NativeProduct),
        ("num_layers", ctypes.c_long),
        ("width", ctypes.c_long),
    )


class NativePages(ctypes.Structure):
    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("type", ctypes.c_long),
        ("block_stride", ctypes.c_long),
        ("block_size", ctypes.c_long),
    )


class NativeStep(ctypes.Structure):
    _fields_ = (
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("tiles", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("num_tiles", ctypes.c_long),
        ("stored", ctypes.c_long),
        ("rows", ctypes.c_long),
    )
