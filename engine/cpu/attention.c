/* Attention in tiles of 64 keys: a key tile is transposed once and then used by a block of queries of all
 * heads that share it. A part is one (row, key head); its sums run in a fixed order, so threads change
 * nothing.
 */
#include "engine/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
    TILE = ATTENTION_TILE,
    BLOCK_HEADS = 3, /* queries × heads of a block: at least 3 tiles' worth */
    STATES_MAX =
        ATTENTION_GROUP_MAX * TILE > BLOCK_HEADS *TILE ? ATTENTION_GROUP_MAX *TILE : BLOCK_HEADS *TILE
};

/* One sequence's attention for one key head. Strides are in floats. */
struct sequence {
    const struct kernels *kernels;
    uint32_t queries, offset; /* query i sits at position offset + i; keys 0 .. offset + queries */
    uint32_t group, head_dim;
    uint32_t
        window; /* keys that a query sees, itself counted; more than there are where there is no window */
    float scale, cap;
    const float *q, *k, *v; /* q: first head of the group; heads are head_dim apart */
    size_t ldq, ldk;        /* of q; of k and v */
    float *out;
    size_t ldo;
    float *lse; /* or NULL; heads are 1 apart */
    size_t ldl;
    /* backward only */
    const float *dout;
    float *delta, *dq, *dk, *dv;
    float *scratch;
};

size_t attention_scratch_floats(void)
{
    size_t tiles = 4ull * ATTENTION_HEAD_DIM_MAX * TILE; /* transposed k, v; sums of dk, dv */
    size_t scores = 2ull * BLOCK_HEADS * TILE * TILE;
    return tiles + scores + 2ull * STATES_MAX;
}

/* to[head_dim][TILE] = from[count][head_dim] transposed; columns from count on are 0. */
static void transpose_tile(const float *from, size_t ld, uint32_t count, uint32_t head_dim, float *to)
{
    if (count < TILE)
        memset(to, 0, (size_t)head_dim * TILE * sizeof *to);
    for (uint32_t j = 0; j < count; j += 8) {
        uint32_t last = j + 8 < count ? j + 8 : count;
        for (uint32_t d = 0; d < head_dim; d++)
            for (uint32_t i = j; i < last; i++)
                to[(size_t)d * TILE + i] = from[(size_t)i * ld + d];
    }
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Keys of tile [first, first + count) that position may see. */
static uint32_t visible(uint32_t position, uint32_t first, uint32_t count)
{
    return position < first ? 0 : min_u32(position - first + 1, count);
}

/* Keys of the tile from `first` on that lie before position's window. */
static uint32_t hidden(const struct sequence *s, uint32_t position, uint32_t first, uint32_t count)
{
    uint32_t begin = position < s->window ? 0 : position - s->window + 1;
    return begin < first ? 0 : min_u32(begin - first, count);
}

/* The first key tile that queries from `position` on see anything of. */
static uint32_t first_tile(const struct sequence *s, uint32_t position)
{
    return position < s->window ? 0 : (position - s->window + 1) / TILE * TILE;
}

/* Queries of one block: whole tiles, enough that a transposed key tile pays. */
static uint32_t block_queries(uint32_t group)
{
    return group >= BLOCK_HEADS ? TILE : (BLOCK_HEADS + group - 1) / group * TILE;
}

/* Keys [first, first + count) for the queries [begin, end) of head h: running softmax. */
static void forward_tile(const struct sequence *s, uint32_t h, uint32_t begin, uint32_t end, uint32_t first,
                         uint32_t count, const float *keys, float *scores, float *max, float *sum)
{
    const struct kernels *kernels = s->kernels;
    uint32_t n = end - begin;
    const float *q = s->q + (size_t)begin * s->ldq + (size_t)h * s->head_dim;
    float *out = s->out + (size_t)begin * s->ldo + (size_t)h * s->head_dim;
    kernels->tile(n, TILE, s->head_dim, q, s->ldq, 1, keys, TILE, scores, TILE, false);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = s->offset + begin + i, seen = visible(position, first, count);
        uint32_t unseen = hidden(s, position, first, count);
        float *row = scores + (size_t)i * TILE, *o = out + (size_t)i * s->ldo;
        bool nothing_before = max[i] == -INFINITY;
        if (nothing_before)
            memset(o, 0, s->head_dim * sizeof *o);
        if (unseen >= seen) {
            memset(row, 0, TILE * sizeof *row);
            continue;
        }
        float correction = kernels->softmax_tile(row, unseen, seen, TILE, s->scale, s->cap, &max[i], &sum[i]);
        if (!nothing_before && correction != 1.0f)
            kernels->scale(o, correction, o, s->head_dim);
    }
    kernels->tile(n, s->head_dim, count, scores, TILE, 1, s->v + (size_t)first * s->ldk, s->ldk, out, s->ldo,
                  true);
}

static void forward_finish(const struct sequence *s, uint32_t h, uint32_t begin, uint32_t end,
                           const float *max, const float *sum)
{
    for (uint32_t i = begin; i < end; i++) {
        float *out = s->out + (size_t)i * s->ldo + (size_t)h * s->head_dim;
        float total = sum[i - begin];
        s->kernels->scale(out, 1.0f / total, out, s->head_dim);
        if (s->lse != NULL)
            s->lse[(size_t)i * s->ldl + h] = max[i - begin] + logf(total);
    }
}

static void sequence_forward(const struct sequence *s)
{
    uint32_t step = block_queries(s->group);
    float *keys = s->scratch, *scores = keys + (size_t)ATTENTION_HEAD_DIM_MAX * TILE;
    float *max = scores + (size_t)BLOCK_HEADS * TILE * TILE, *sum = max + STATES_MAX;
    for (uint32_t begin = 0; begin < s->queries; begin += step) {
        uint32_t end = min_u32(begin + step, s->queries), last = s->offset + end;
        for (uint32_t i = 0; i < s->group * step; i++) {
            max[i] = -INFINITY;
            sum[i] = 0.0f;
        }
        for (uint32_t first = first_tile(s, s->offset + begin); first < last; first += TILE) {
            uint32_t count = min_u32(TILE, last - first);
            transpose_tile(s->k + (size_t)first * s->ldk, s->ldk, count, s->head_dim, keys);
            for (uint32_t h = 0; h < s->group; h++)
                forward_tile(s, h, begin, end, first, count, keys, scores, max + (size_t)h * step,
                             sum + (size_t)h * step);
        }
        for (uint32_t h = 0; h < s->group; h++)
            forward_finish(s, h, begin, end, max + (size_t)h * step, sum + (size_t)h * step);
    }
}

struct backward_tiles {
    float *keys, *values; /* transposed, [head_dim][TILE] */
    float *dk, *dv;       /* [TILE][head_dim] */
    float *p, *dp;        /* [TILE][TILE] */
};

/* One tile of queries [begin, end) of head h against one tile of keys. */
static void backward_tile(const struct sequence *s, uint32_t h, uint32_t begin, uint32_t end, uint32_t first,
                          uint32_t count, const struct backward_tiles *t)
{
    const struct kernels *kernels = s->kernels;
    uint32_t n = end - begin, d = s->head_dim;
    size_t head = (size_t)h * d;
    const float *q = s->q + begin * s->ldq + head, *dout = s->dout + begin * s->ldo + head;
    kernels->tile(n, TILE, d, q, s->ldq, 1, t->keys, TILE, t->p, TILE, false);
    kernels->tile(n, TILE, d, dout, s->ldo, 1, t->values, TILE, t->dp, TILE, false);
    for (uint32_t i = 0; i < n; i++) {
        size_t state = (size_t)(begin + i) * s->ldl + h;
        kernels->softmax_tile_backward(t->p + (size_t)i * TILE, t->dp + (size_t)i * TILE,
                                       hidden(s, begin + i, first, count), visible(begin + i, first, count),
                                       TILE, s->scale, s->cap, s->lse[state], s->delta[state]);
    }
    kernels->tile(count, d, n, t->p, 1, TILE, dout, s->ldo, t->dv, d, true);
    kernels->tile(count, d, n, t->dp, 1, TILE, q, s->ldq, t->dk, d, true);
    kernels->tile(n, d, count, t->dp, TILE, 1, s->k + (size_t)first * s->ldk, s->ldk,
                  s->dq + begin * s->ldq + head, s->ldq, first != first_tile(s, begin));
}

static void sequence_delta(const struct sequence *s)
{
    for (uint32_t i = 0; i < s->queries; i++)
        for (uint32_t h = 0; h < s->group; h++) {
            size_t at = (size_t)i * s->ldo + (size_t)h * s->head_dim;
            s->delta[(size_t)i * s->ldl + h] = s->kernels->dot(s->out + at, s->dout + at, s->head_dim);
        }
}

static void sequence_backward(const struct sequence *s)
{
    size_t tile = (size_t)ATTENTION_HEAD_DIM_MAX * TILE;
    struct backward_tiles t = {
        .keys = s->scratch,
        .values = s->scratch + tile,
        .dk = s->scratch + 2 * tile,
        .dv = s->scratch + 3 * tile,
        .p = s->scratch + 4 * tile,
        .dp = s->scratch + 4 * tile + TILE * TILE,
    };
    size_t row_bytes = s->head_dim * sizeof(float);
    sequence_delta(s);
    for (uint32_t first = 0; first < s->queries; first += TILE) {
        uint32_t count = min_u32(TILE, s->queries - first);
        transpose_tile(s->k + first * s->ldk, s->ldk, count, s->head_dim, t.keys);
        transpose_tile(s->v + first * s->ldk, s->ldk, count, s->head_dim, t.values);
        memset(t.dk, 0, count * row_bytes);
        memset(t.dv, 0, count * row_bytes);
        for (uint32_t h = 0; h < s->group; h++)
            for (uint32_t begin = first; begin < s->queries && first_tile(s, begin) <= first; begin += TILE)
                backward_tile(s, h, begin, min_u32(begin + TILE, s->queries), first, count, &t);
        for (uint32_t j = 0; j < count; j++) {
            memcpy(s->dk + (size_t)(first + j) * s->ldk, t.dk + (size_t)j * s->head_dim, row_bytes);
            memcpy(s->dv + (size_t)(first + j) * s->ldk, t.dv + (size_t)j * s->head_dim, row_bytes);
        }
    }
}

struct attention_job {
    struct cpu_runner *runner;
    const struct op_attention *forward;
    const struct op_attention_backward *backward;
    const struct op_attention_cached *cached;
};

/* Where part `index` of a micro-batch lies: one row, one key head and the query heads that use it. */
struct place {
    uint32_t queries, group;
    size_t q, k, out, state; /* values from the operand's beginning */
};

static struct place place_of(uint32_t index, const uint32_t *row_start, uint32_t heads, uint32_t kv_heads,
                             uint32_t head_dim, uint32_t ld)
{
    uint32_t row = index / kv_heads, kv = index % kv_heads, group = heads / kv_heads;
    size_t begin = row_start[row], head = (size_t)kv * group;
    return (struct place){
        .queries = row_start[row + 1] - row_start[row],
        .group = group,
        .q = begin * ld + head * head_dim,
        .k = begin * ld + (size_t)kv * head_dim,
        .out = (begin * heads + head) * head_dim,
        .state = begin * heads + head,
    };
}

static uint32_t window_of(uint32_t window)
{
    return window == 0 ? UINT32_MAX : window;
}

static void forward_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    const struct op_attention *op = job->forward;
    struct place at =
        place_of(index, operand_at(&op->row_start), op->heads, op->kv_heads, op->head_dim, op->ld);
    struct sequence s = {
        .kernels = job->runner->kernels,
        .queries = at.queries,
        .group = at.group,
        .head_dim = op->head_dim,
        .window = window_of(op->window),
        .scale = op->scale,
        .cap = op->cap,
        .q = (const float *)operand_at(&op->q) + at.q,
        .k = (const float *)operand_at(&op->k) + at.k,
        .v = (const float *)operand_at(&op->v) + at.k,
        .ldq = op->ld,
        .ldk = op->ld,
        .out = (float *)operand_at(&op->out) + at.out,
        .ldo = (size_t)op->heads * op->head_dim,
        .lse = (float *)operand_at(&op->lse) + at.state,
        .ldl = op->heads,
        .scratch = job->runner->scratch + thread * job->runner->scratch_floats,
    };
    sequence_forward(&s);
}

static void backward_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    const struct op_attention_backward *op = job->backward;
    struct place at =
        place_of(index, operand_at(&op->row_start), op->heads, op->kv_heads, op->head_dim, op->ld);
    struct sequence s = {
        .kernels = job->runner->kernels,
        .queries = at.queries,
        .group = at.group,
        .head_dim = op->head_dim,
        .window = window_of(op->window),
        .scale = op->scale,
        .cap = op->cap,
        .q = (const float *)operand_at(&op->q) + at.q,
        .k = (const float *)operand_at(&op->k) + at.k,
        .v = (const float *)operand_at(&op->v) + at.k,
        .ldq = op->ld,
        .ldk = op->ld,
        .out = (float *)operand_at(&op->out) + at.out,
        .ldo = (size_t)op->heads * op->head_dim,
        .lse = (float *)operand_at(&op->lse) + at.state,
        .ldl = op->heads,
        .dout = (const float *)operand_at(&op->dout) + at.out,
        .delta = (float *)operand_at(&op->delta) + at.state,
        .dq = (float *)operand_at(&op->dq) + at.q,
        .dk = (float *)operand_at(&op->dk) + at.k,
        .dv = (float *)operand_at(&op->dv) + at.k,
        .scratch = job->runner->scratch + thread * job->runner->scratch_floats,
    };
    sequence_backward(&s);
}

static void cached_part(void *context, uint32_t kv, uint32_t thread)
{
    const struct attention_job *job = context;
    const struct op_attention_cached *op = job->cached;
    uint32_t group = op->heads / op->kv_heads;
    size_t head = (size_t)kv * group * op->head_dim;
    struct sequence s = {
        .kernels = job->runner->kernels,
        .queries = op->tokens,
        .offset = op->begin,
        .group = group,
        .head_dim = op->head_dim,
        .window = window_of(op->window),
        .scale = op->scale,
        .cap = op->cap,
        .q = (const float *)operand_at(&op->q) + head,
        .k = (const float *)operand_at(&op->k) + (size_t)kv * op->head_dim,
        .v = (const float *)operand_at(&op->v) + (size_t)kv * op->head_dim,
        .ldq = op->ldq,
        .ldk = (size_t)op->kv_heads * op->head_dim,
        .out = (float *)operand_at(&op->out) + head,
        .ldo = (size_t)op->heads * op->head_dim,
        .scratch = job->runner->scratch + thread * job->runner->scratch_floats,
    };
    sequence_forward(&s);
}

void cpu_attention(struct cpu_runner *runner, const struct op *op)
{
    struct attention_job job = {.runner = runner, .forward = &op->attention};
    pool_run(runner->pool, op->attention.rows * op->attention.kv_heads, forward_part, &job);
}

void cpu_attention_backward(struct cpu_runner *runner, const struct op *op)
{
    struct attention_job job = {.runner = runner, .backward = &op->attention_backward};
    pool_run(runner->pool, op->attention_backward.rows * op->attention_backward.kv_heads, backward_part,
             &job);
}

void cpu_attention_cached(struct cpu_runner *runner, const struct op *op)
{
    struct attention_job job = {.runner = runner, .cached = &op->attention_cached};
    pool_run(runner->pool, op->attention_cached.tokens == 0 ? 0 : op->attention_cached.kv_heads, cached_part,
             &job);
}
