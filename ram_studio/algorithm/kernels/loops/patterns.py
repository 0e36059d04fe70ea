"""Overlap pattern of each element, and counts of elements by pattern."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.kernels.loops.compiling import loop
from ram_studio.algorithm.kernels.loops.elements import INFINITE, TILE, load, size_of


@loop
def find_patterns(base, agents, pattern, epsilon):
    largest, limit = np.int32(0), size_of(epsilon)
    for i in range(base.shape[0]):
        x = load(base[i])
        found = np.uint32(0)
        for t in range(len(agents)):
            size = size_of(load(agents[t][i]) - x)
            largest = max(largest, size)
            found |= np.uint32(1 << t) if size > limit else np.uint32(0)
        pattern[i] = found
    return largest < INFINITE


@loop
def _pack_four(pattern, codes):
    """Write the patterns of four elements, of up to three agents, as one code of 12 bits."""
    words = pattern.view(np.uint32)
    for i in range(words.shape[0]):
        code = np.uint32(0)
        for k in range(4):
            one = np.uint32(words[i] >> np.uint32(8 * k)) & np.uint32(7)
            code |= np.uint32(one << np.uint32(3 * k))
        codes[i] = np.uint16(code)
    return words.shape[0]


@loop
def _pack_two(pattern, codes):
    """Write the patterns of two elements, of up to six agents, as one code of 12 bits."""
    words = pattern.view(np.uint16)
    for i in range(words.shape[0]):
        word = np.uint32(words[i])
        codes[i] = np.uint16(
            (word & np.uint32(63)) | np.uint32(word >> np.uint32(8)) << np.uint32(6)
        )
    return words.shape[0]


@loop
def count_patterns(pattern, counts):
    is_short = counts.shape[0] <= 8
    together, bits = (4, 3) if is_short else (2, 6)
    codes = np.empty(TILE, dtype=np.uint16)
    # Four tables in turn, so that increments do not wait for each other: most codes are equal.
    tables = np.zeros((4, 4096), dtype=np.int32)
    whole = pattern.shape[0] // (4 * together) * (4 * together)
    for start in range(0, whole, together * TILE):
        part = pattern[start : min(start + together * TILE, whole)]
        length = _pack_four(part, codes) if is_short else _pack_two(part, codes)
        for i in range(0, length, 4):
            for k in range(4):
                tables[np.uint64(k), np.uint64(codes[np.uint64(i + k)])] += np.int32(1)
    for i in range(whole, pattern.shape[0]):
        counts[pattern[i]] += 1
    for code in range(4096):
        found = tables[0, code] + tables[1, code] + tables[2, code] + tables[3, code]
        if found:
            for k in range(together):
                counts[(code >> (bits * k)) & ((1 << bits) - 1)] += found


@loop
def count_shared(pattern, shared):
    for i in range(pattern.shape[0]):
        left = np.uint32(pattern[i])
        others = -1
        while left:
            left &= np.uint32(left - np.uint32(1))
            others += 1
        for t in range(shared.shape[0] if others >= 0 else 0):
            shared[t, others] += np.int64(np.uint32(pattern[i] >> np.uint32(t)) & np.uint32(1))
