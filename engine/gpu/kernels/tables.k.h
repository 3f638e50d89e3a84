/* Kernels on rows of tables that indices select. An index outside its table ends the launch. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_TABLES_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_TABLES_K_H

#include "engine/gpu/kernels/four.h"
#include "engine/gpu/kernels/unpack.k.h"

#define TABLES_KERNELS(X)                                                                                    \
    X(embed, 256) X(embed_chain, 256) X(embed_backward, 256) X(gather_rows, 256) X(scatter_rows, 256)

/* out[t] = scale * table[ids[t]]. The table has type table_as (ELEMENT_…, four.h), or if `packed` blocks of
 * kind table_as (unpack.k.h), with a whole number of blocks in each row. `turned`: it is [hidden, vocab]. */
struct embed_args {
    uint64_t ids, table, out;
    uint32_t tokens, hidden, vocab, turned, packed, table_as, wide;
    float scale;
};

/* chain[tokens], for the gradient of a table: links the tokens of each id in their order. chain[t].next is
 * the next token with t's id, or EMBED_CHAIN_END; chain[t].first tells that no token before t has the id. */
enum { EMBED_CHAIN_END = 0x7fffffff };
struct embed_link {
    uint32_t next, first;
};
struct embed_chain_args {
    uint64_t ids, chain;
    uint32_t tokens;
};

/* dtable[ids[t]] += scale * dout[t], in the order of t: one block handles all tokens of an id */
struct embed_backward_args {
    uint64_t ids, chain, dout, dtable;
    uint32_t hidden, vocab, turned, wide;
    float scale;
};

/* y[i] = x[index[i]], i < rows */
struct gather_rows_args {
    uint64_t x, index, y;
    uint32_t rows, width, x_rows, wide;
};

/* y[index[i]] = scale * x[i], i < rows */
struct scatter_rows_args {
    uint64_t x, index, y;
    uint32_t rows, width, y_rows, wide;
    float scale;
};

#ifdef GPU_KERNELS

/* Loads n values of an id of a table [hidden, vocab], the first at `at`. */
FUNCTION struct four turned_load(uint32_t element, uint64_t table, uint64_t at, uint32_t vocab, uint32_t n)
{
    struct four a;
    for (uint32_t j = 0; j < 4; j++)
        a.v[j] = j < n ? four_load_as(element, table, at + (uint64_t)j * vocab, 1, 0).v[0] : 0;
    return a;
}

KERNEL(embed, 256)
{
    struct four_position at = place_in_rows(args.tokens, args.hidden);
    if (at.n == 0)
        return;
    uint32_t id = LOAD(POINTER(const uint32_t, args.ids), at.row);
    assert_device(id < args.vocab);
    uint64_t from = (uint64_t)id * args.hidden + at.column;
    struct four a;
    if (args.turned)
        a = turned_load(args.table_as, args.table, (uint64_t)at.column * args.vocab + id, args.vocab, at.n);
    else if (args.packed)
        a = unpack_four(args.table_as, POINTER(const uint8_t, args.table), from);
    else
        a = four_load_as(args.table_as, args.table, from, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++)
        a.v[j] *= args.scale;
    four_store(POINTER(float, args.out), at.row * args.hidden + at.column, at.n, args.wide, a);
}

KERNEL(embed_chain, 256)
{
    SHARED(uint32_t, tile, 256);
    const uint32_t *ids = POINTER(const uint32_t, args.ids);
    uint32_t t = block_x() * 256 + thread(), id = t < args.tokens ? LOAD(ids, t) : 0;
    struct embed_link link;
    link.next = EMBED_CHAIN_END;
    link.first = 1;
    for (uint32_t base = 0; base < args.tokens; base += 256) {
        uint32_t left = args.tokens - base, count = left < 256 ? left : 256;
        if (thread() < count)
            PUT(tile, thread(), LOAD(ids, base + thread()));
        barrier();
        for (uint32_t i = 0; t < args.tokens && i < count; i++) {
            uint32_t u = base + i;
            if (GET(tile, i) != id)
                continue;
            if (u < t)
                link.first = 0;
            else if (u > t && u < link.next)
                link.next = u;
        }
        barrier();
    }
    if (t < args.tokens) {
        uint32_t *chain = POINTER(uint32_t, args.chain);
        STORE(chain, 2 * (uint64_t)t, link.next);
        STORE(chain, 2 * (uint64_t)t + 1, link.first);
    }
}

KERNEL(embed_backward, 256)
{
    const uint32_t *chain = POINTER(const uint32_t, args.chain);
    uint32_t first = block_x(), id = LOAD(POINTER(const uint32_t, args.ids), first);
    if (LOAD(chain, 2 * (uint64_t)first + 1) == 0)
        return;
    assert_device(id < args.vocab);
    float *table = POINTER(float, args.dtable), *row = table + (uint64_t)id * args.hidden;
    for (uint32_t column = thread() * 4; column < args.hidden; column += 4 * 256) {
        uint32_t n = args.hidden - column < 4 ? args.hidden - column : 4;
        uint64_t turned = (uint64_t)column * args.vocab + id;
        struct four sum = args.turned ? turned_load(ELEMENT_F32, args.dtable, turned, args.vocab, n)
                                      : four_load(row, column, n, args.wide);
        for (uint32_t t = first; t != EMBED_CHAIN_END; t = LOAD(chain, 2 * (uint64_t)t)) {
            struct four d =
                four_load(POINTER(const float, args.dout), (uint64_t)t * args.hidden + column, n, args.wide);
            for (uint32_t j = 0; j < 4; j++)
                sum.v[j] = math_fma(args.scale, d.v[j], sum.v[j]);
        }
        for (uint32_t j = 0; j < 4; j++) /* a bound that varies would put the four into local memory */
            if (args.turned && j < n)
                STORE(table, turned + (uint64_t)j * args.vocab, sum.v[j]);
        if (!args.turned)
            four_store(row, column, n, args.wide, sum);
    }
}

KERNEL(gather_rows, 256)
{
    struct four_position at = place_in_rows(args.rows, args.width);
    if (at.n == 0)
        return;
    uint32_t from = LOAD(POINTER(const uint32_t, args.index), at.row);
    assert_device(from < args.x_rows);
    struct four a =
        four_load(POINTER(const float, args.x), (uint64_t)from * args.width + at.column, at.n, args.wide);
    four_store(POINTER(float, args.y), at.row * args.width + at.column, at.n, args.wide, a);
}

KERNEL(scatter_rows, 256)
{
    struct four_position at = place_in_rows(args.rows, args.width);
    if (at.n == 0)
        return;
    uint32_t to = LOAD(POINTER(const uint32_t, args.index), at.row);
    assert_device(to < args.y_rows);
    struct four a = four_load(POINTER(const float, args.x), at.row * args.width + at.column, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++)
        a.v[j] *= args.scale;
    four_store(POINTER(float, args.y), (uint64_t)to * args.width + at.column, at.n, args.wide, a);
}

#endif
#endif
