"""One sequence distributed over several processes, through ``torch.distributed``.

Every process (rank) of a process group calls the same function with its own contiguous
positions, in the order of ranks; outputs and gradients are those of its positions.
Clusters and exact keys are the same as in one process, and the amount of communication
depends on the number of clusters, not on the sequence length.

    torch.distributed.init_process_group("gloo")
    out = shoal.distributed.attention(q, k, v, "i-clustered-100")
    out.sum().backward()
"""

from __future__ import annotations

import ctypes
import traceback
from ctypes import CFUNCTYPE, POINTER, c_char, c_int, c_int32, c_int64, c_uint, c_void_p
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._call import scale_for
from ._engine import Context, OwnedPlan, parse, refuse_kind
from ._native import IO, OK, WITH_BACKWARD, Attention, GradientPointers, Inputs, Problem
from ._native import ShoalError, lib

__all__ = ["attention"]

INT32 = 2  # of shoal_sum_type; the only one that plans use


class Transport(ctypes.Structure):
    """shoal_transport: communication between ranks."""


SUM = CFUNCTYPE(c_int, POINTER(Transport), c_int, c_int64, c_void_p)
SUM_END = CFUNCTYPE(c_int, POINTER(Transport))
GATHER = CFUNCTYPE(c_int, POINTER(Transport), c_int64, c_void_p, c_void_p)
PARTS = CFUNCTYPE(c_int, POINTER(Transport), POINTER(c_int64), c_void_p, c_void_p)
BROADCAST = CFUNCTYPE(c_int, POINTER(Transport), c_int32, c_int64, c_void_p)
EXCHANGE = CFUNCTYPE(
    c_int, POINTER(Transport), POINTER(c_int64), c_void_p, POINTER(c_int64), c_void_p
)
Transport._fields_ = [
    ("user", c_void_p),
    ("rank", c_int32),
    ("ranks", c_int32),
    ("local_rank", c_int32),
    ("local_ranks", c_int32),
    ("sent", c_int64),
    ("message", c_char * 256),
    ("sum", SUM),
    ("sum_begin", SUM),
    ("sum_end", SUM_END),
    ("gather", GATHER),
    ("gather_parts", PARTS),
    ("broadcast", BROADCAST),
    ("exchange", EXCHANGE),
    ("reserved", c_void_p * 4),
]

lib.shoal_plan_create_over.restype = c_int
lib.shoal_plan_create_over.argtypes = [
    POINTER(Transport),
    c_void_p,
    POINTER(Problem),
    POINTER(Attention),
    c_uint,
    POINTER(c_void_p),
]


def _bytes_at(address: int, count: int) -> Tensor:
    room = (ctypes.c_uint8 * count).from_address(address)
    return torch.frombuffer(room, dtype=torch.uint8)


def _numbers_at(address: int, count: int) -> Tensor:
    room = (c_int32 * count).from_address(address)
    return torch.frombuffer(room, dtype=torch.int32)


class Ranks:
    """The transport of a process group. A failed call leaves its message, and every later
    one fails at once, because the ranks no longer agree about what comes next.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.failed = False
        self.table = Transport(
            rank=dist.get_rank(group), ranks=dist.get_world_size(group)
        )
        self.table.sum = SUM(self.guarded(self.sum))
        self.table.gather = GATHER(self.guarded(self.gather))
        self.table.gather_parts = PARTS(self.guarded(self.gather_parts))
        self.table.exchange = EXCHANGE(self.guarded(self.exchange))

    def guarded(self, call: Any) -> Any:
        """No exception may pass through C."""

        def run(_: Any, *arguments: Any) -> int:
            if self.failed:
                return IO
            try:
                call(*arguments)
            except Exception as error:
                self.failed = True
                last = traceback.format_exception_only(type(error), error)[-1]
                self.table.message = last.strip().encode()[:255]
            return IO if self.failed else OK

        return run

    def peer(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank) if self.group is not None else rank

    def sum(self, kind: int, count: int, values: int) -> None:
        if kind != INT32:
            raise NotImplementedError(f"a sum of type {kind}")
        dist.all_reduce(_numbers_at(values, count), group=self.group)
        self.table.sent += 8 * count * (self.table.ranks - 1) // self.table.ranks

    def gather(self, count: int, own: int, everything: int) -> None:
        ranks = range(self.table.ranks)
        parts = [_bytes_at(everything + rank * count, count) for rank in ranks]
        dist.all_gather(parts, _bytes_at(own, count), group=self.group)
        self.table.sent += count * (self.table.ranks - 1)

    def gather_parts(self, sizes: Any, own: int, everything: int) -> None:
        for rank in range(self.table.ranks):
            if sizes[rank] == 0:
                continue
            part = _bytes_at(everything, sizes[rank])
            if rank == self.table.rank:
                part.copy_(_bytes_at(own, sizes[rank]))
                self.table.sent += sizes[rank] * (self.table.ranks - 1)
            dist.broadcast(part, self.peer(rank), group=self.group)
            everything += sizes[rank]

    def exchange(self, to_sizes: Any, send: int, from_sizes: Any, receive: int) -> None:
        waiting = []
        for rank in range(self.table.ranks):
            out, into = to_sizes[rank], from_sizes[rank]
            if rank == self.table.rank and out:
                _bytes_at(receive, out).copy_(_bytes_at(send, out))
            elif rank != self.table.rank:
                peer = self.peer(rank)
                if into:
                    there = _bytes_at(receive, into)
                    waiting.append(dist.irecv(there, peer, group=self.group))
                if out:
                    waiting.append(dist.isend(_bytes_at(send, out), peer, self.group))
                    self.table.sent += out
            send += out
            receive += into
        for work in waiting:
            if work is not None:
                work.wait()


class SpreadPlan(OwnedPlan):
    """The plan of one of several ranks, and the objects that it needs."""

    def __init__(self, ranks: Ranks, kind: str, problem: Problem, backward: bool) -> None:
        super().__init__(Context(torch.get_num_threads()))
        self.ranks = ranks
        self.attention = parse(kind)
        handle = c_void_p()
        status = lib.shoal_plan_create_over(
            ctypes.byref(ranks.table),
            self.context.handle,
            ctypes.byref(problem),
            ctypes.byref(self.attention),
            WITH_BACKWARD if backward else 0,
            ctypes.byref(handle),
        )
        self.check(status)
        self.handle = handle.value


def _contiguous(tensor: Tensor) -> Tensor:
    """The layout that the plan needs."""
    return tensor.detach().contiguous()


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, lengths, kind, scale, group):  # type: ignore
        q, k, v = _contiguous(q), _contiguous(k), _contiguous(v)
        backward = any(ctx.needs_input_grad[:3])
        problem = Problem(
            batch=q.shape[0],
            heads=q.shape[1],
            kv_heads=k.shape[1],
            queries=q.shape[2],
            keys=k.shape[2],
            dim=q.shape[3],
            value_dim=v.shape[3],
            scale=scale,
        )
        plan = SpreadPlan(Ranks(group), kind, problem, backward)
        out = q.new_empty(*q.shape[:3], v.shape[3])
        inputs = Inputs(
            q=_pointer(q),
            k=_pointer(k),
            v=_pointer(v),
            query_lengths=_pointer(lengths[0]),
            key_lengths=_pointer(lengths[1]),
        )
        plan.forward(inputs, out.data_ptr())
        if backward:
            ctx.plan, ctx.inputs, ctx.lengths = plan, inputs, lengths
            ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, dout):  # type: ignore
        q, k, v, out = ctx.saved_tensors
        dout = _contiguous(dout)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        gradients = GradientPointers(
            out=_pointer(out),
            dout=_pointer(dout),
            dq=_pointer(dq),
            dk=_pointer(dk),
            dv=_pointer(dv),
        )
        ctx.plan.backward(ctx.inputs, gradients)
        return dq, dk, dv, None, None, None, None


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if (
            tensor.dim() != 4
            or tensor.dtype != torch.float32
            or tensor.device.type != "cpu"
        ):
            raise ShoalError(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}: "
                "several ranks need float32 [batch, heads, positions, dim] on the CPU"
            )
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShoalError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not match"
        )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kind: str = "i-clustered-100",
    *,
    group: Any = None,
    scale: float | None = None,
    query_lengths: Tensor | None = None,
    key_lengths: Tensor | None = None,
) -> Tensor:
    """Attention of this rank's queries over the keys of all ranks, with gradients.

    q, k and v are this rank's positions, float32 [batch, heads, positions, dim]; their
    number may differ between ranks, and be 0. The lengths, int64 [batch], are of this
    rank's positions. All ranks of the process group (None: the default one) must call it
    together, and backward too. Kinds: full, clustered-C, i-clustered-C and q-clustered-C.
    """
    refuse_kind(kind)
    _check(q, k, v)
    lengths = tuple(
        None if x is None else x.to(torch.int64).contiguous()
        for x in (query_lengths, key_lengths)
    )
    factor = 0.0 if scale is None else scale_for(scale)
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        q, k, v, lengths, kind, factor, group
    )
    return out
