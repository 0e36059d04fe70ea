"""The innermost step of counting on 16 elements at a time, as vector code.

numba vectorises plain loops well, but not picking the changed elements out of a run: it needs a
compress instruction. It is written here in LLVM's own vector operations; only with AVX-512 is it
fast (``HAS_FAST_LANES``). The plain loops in ``loop_kernels`` compute the same.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ram_studio.algorithm import lane_parts as v
from ram_studio.algorithm.ladder import BIN_COUNT, BIN_SHIFT, LOWEST_BIN
from ram_studio.algorithm.processor import HAS_FAST_LANES, LANES

__all__ = ["HAS_FAST_LANES", "LANES", "leaving_slots"]


@intrinsic
def leaving_slots(typing_context, base, agents, start, edge_bits, slots, position, largest):
    """Append the chain histogram's indices of elements [start, start + 16); return the new end.

    base, agents: stored elements; edge_bits: as for ``kernels.fill_chain``; slots: uint32 with
    room for 16 more than are kept, one index per changed element and agent from ``position`` on;
    largest: int32[16], raised to the bits of |tau| (at or above those of infinity: not finite).
    """
    n_agents = len(agents)
    signature = types.intp(base, agents, types.intp, types.int32, slots, types.intp, largest)

    def generate(context, builder, signature, args):
        base_kind, agents_kind, _, _, slots_kind, _, largest_kind = signature.args
        base, agents, start, edge_bits, slots, position, largest = args
        x = v.elements(builder, base_kind, v.data(context, builder, base_kind, base), start)
        above_edge = v.broadcast(builder, builder.add(edge_bits, v.INT32(1)))
        largest = v.data(context, builder, largest_kind, largest)
        most = v.load(builder, largest, v.BITS, 4)
        bins, active, rows = [], [], []
        for t in range(n_agents):
            agent = v.data(context, builder, agents_kind.dtype, builder.extract_value(agents, t))
            y = v.elements(builder, agents_kind.dtype, agent, start)
            bits = v.without_sign(builder, builder.fsub(y, x))
            most = v.larger(builder, most, bits)
            active.append(builder.icmp_signed("!=", bits, v.splat(v.BITS, 0)))
            k = builder.ashr(builder.sub(bits, above_edge), v.splat(v.BITS, BIN_SHIFT))
            k = v.larger(builder, k, v.splat(v.BITS, LOWEST_BIN))
            k = v.smaller(builder, k, v.splat(v.BITS, LOWEST_BIN + BIN_COUNT - 1))
            # An unchanged element lies below every bin, so it stays in no set.
            bins.append(builder.select(active[t], k, v.splat(v.BITS, -(1 << 24))))
            alone = ((1 << t) * n_agents + t) * BIN_COUNT - LOWEST_BIN
            rows.append(builder.add(bins[t], v.splat(v.BITS, alone)))
        v.store(builder, most, largest, 4)
        for a in range(n_agents):
            for b in range(a + 1, n_agents):
                # Either a is still active when b leaves, or b when a leaves; in one bin a goes
                # first.
                a_stays = builder.icmp_signed(">", bins[a], bins[b])
                with_a = builder.add(rows[b], v.splat(v.BITS, (1 << a) * n_agents * BIN_COUNT))
                with_b = builder.add(rows[a], v.splat(v.BITS, (1 << b) * n_agents * BIN_COUNT))
                rows[b] = builder.select(a_stays, with_a, rows[b])
                rows[a] = builder.select(a_stays, rows[a], with_b)
        slots = v.data(context, builder, slots_kind, slots)
        for t in range(n_agents):
            # A whole vector is stored and the end moved on by what counts: a masked store to
            # memory is many times slower.
            kept = v.call(
                builder,
                f"llvm.experimental.vector.compress.v{LANES}i32",
                v.BITS,
                rows[t],
                active[t],
                ir.Constant(v.BITS, ir.Undefined),
            )
            v.store(builder, kept, builder.gep(slots, [position]), 4)
            position = builder.add(position, v.lanes_set(builder, active[t]))
        return position

    return signature, generate
