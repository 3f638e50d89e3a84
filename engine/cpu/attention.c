/* Attention in tiles of 64 keys. A key tile is transposed once and then used by a block of queries of all
 * heads that share the keys. In forward, a part is one block of queries of one row and one key head.
 *
 * In backward, a part is one (row, key head). It computes each tile of probabilities once and adds it to the
 * gradients of queries, keys and values. Where that would leave threads idle (a long row, few key heads),
 * parts are single tiles of keys and of queries instead, and the probabilities are computed for both: 7
 * products in place of 5. Either way each sum has the same terms in the same order, so the number of threads
 * changes no bit.
 *
 * With 16-bit `compute`, tiles of the operands, the probabilities and the gradients of scores are rounded,
 * but all stay in fp32 in scratch memory, because the products are those of fp32.
 */
#include "engine/cpu/values.h"

#include <math.h>

enum {
    TILE = ATTENTION_TILE,
    BLOCK_HEADS = 3, /* a block has at least 3 tiles' worth of queries × heads */
    STATES_MAX =
        ATTENTION_GROUP_MAX * TILE > BLOCK_HEADS *TILE ? ATTENTION_GROUP_MAX *TILE : BLOCK_HEADS *TILE,
    TILE_FLOATS = ATTENTION_HEAD_DIM_MAX * TILE,
    VECTOR_MAX = 16 /* floats of the widest vector; rows of rounded tiles begin at its multiples */
};

/* Attention of one sequence for one key head. Strides are in values. */
struct sequence {
    const struct kernels *kernels;
    enum value_kind as; /* dtype to which operands are rounded; VALUES_F32: they are fp32 and not rounded */
    uint32_t queries, offset; /* query i has position offset + i; keys are 0 .. offset + queries */
    uint32_t group, head_dim;
    uint32_t window; /* most keys that a query sees, its own included; larger than any number of keys if there
                        is no window */
    float scale, cap;
    struct gemm_values q, k, v; /* q: of the group's first head; heads are head_dim values apart */
    const struct operand *out;
    size_t out_at, ldo; /* where q's heads begin in out and dout */
    float *lse;         /* logarithms of the softmax sums, or NULL; heads are 1 value apart */
    const float *sinks; /* the group's, or NULL */
    size_t ldl;
    /* used in backward only */
    struct gemm_values dout;
    float *delta, *dq, *dk, *dv; /* rows are as far apart as those of q, k and v */
    float *scratch;
};

/* Scratch of forward is divided by forward_tiles_of(), that of backward by backward_tiles_of(). */
size_t attention_scratch_floats(void)
{
    size_t forward = 6ull * TILE_FLOATS + (size_t)BLOCK_HEADS * TILE * TILE + 2ull * STATES_MAX;
    size_t backward = 7ull * TILE_FLOATS + 2ull * TILE * TILE;
    return forward > backward ? forward : backward;
}

/* The matrix that begins at value `at` of an operand. */
static struct gemm_values attention_matrix_of(const struct operand *operand, size_t at, size_t ld)
{
    return (struct gemm_values){.at = (const uint8_t *)operand_at(operand) + at * dtype_bytes(operand->dtype),
                                .ld = ld,
                                .kind = value_kind_of(operand->dtype)};
}

/* Distance of rows in a rounded tile, in floats. */
static size_t rounded_ld(const struct sequence *s)
{
    return (s->head_dim + VECTOR_MAX - 1ull) / VECTOR_MAX * VECTOR_MAX;
}

/* head_dim columns of `rows` rows from value `at` on, in fp32, *ld values apart: in the operand itself, or
 * rounded in `room`. */
static const float *rows_in_f32(const struct sequence *s, const struct gemm_values *x, size_t at,
                                uint32_t rows, float *room, size_t *ld)
{
    *ld = s->as == VALUES_F32 ? x->ld : rounded_ld(s);
    if (s->as == VALUES_F32)
        return (const float *)x->at + at;
    s->kernels->round_rows(s->as, x, at, rows, s->head_dim, room, *ld);
    return room;
}

/* to[head_dim][TILE] = rows [first, first + count) of x, transposed; columns from `count` on become 0. */
static void transpose_tile(const struct sequence *s, const struct gemm_values *x, uint32_t first,
                           uint32_t count, float *to)
{
    uint32_t head_dim = s->head_dim;
    size_t ld = x->ld;
    if (count < TILE)
        memset(to, 0, (size_t)head_dim * TILE * sizeof(*to));
    if (s->as != VALUES_F32) {
        s->kernels->round_transposed(s->as, x, first * ld, count, head_dim, to, TILE);
        return;
    }
    const float *from = (const float *)x->at + first * ld;
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

/* How many keys of the tile [first, first + count) are not after `position`. */
static uint32_t visible(uint32_t position, uint32_t first, uint32_t count)
{
    return position < first ? 0 : min_u32(position - first + 1, count);
}

/* How many keys of the tile [first, first + count) are before the window of `position`. */
static uint32_t hidden(const struct sequence *s, uint32_t position, uint32_t first, uint32_t count)
{
    uint32_t begin = position < s->window ? 0 : position - s->window + 1;
    return begin < first ? 0 : min_u32(begin - first, count);
}

/* The first key tile that queries from `position` on can see. */
static uint32_t first_tile(const struct sequence *s, uint32_t position)
{
    return position < s->window ? 0 : (position - s->window + 1) / TILE * TILE;
}

/* Number of queries in a block: whole tiles, enough to pay for transposing a key tile. */
static uint32_t block_queries(uint32_t group)
{
    return group >= BLOCK_HEADS ? TILE : (BLOCK_HEADS + group - 1) / group * TILE;
}

/* Scratch memory of a block's running softmax. In fp32, sums are made in the output itself; otherwise in
 * `out`, for heads_at_once() heads. */
struct forward_tiles {
    float *keys;             /* transposed, [head_dim][TILE] */
    float *values, *queries; /* room for rounded tiles, [TILE][rounded_ld] */
    float *out;              /* [heads, queries in block][rounded_ld] */
    float *scores;           /* [queries in block][TILE] */
    float *max, *sum;        /* [heads, queries in block] */
};

static struct forward_tiles forward_tiles_of(const struct sequence *s)
{
    float *scores = s->scratch + 6ull * TILE_FLOATS, *max = scores + (size_t)BLOCK_HEADS * TILE * TILE;
    return (struct forward_tiles){.keys = s->scratch,
                                  .values = s->scratch + TILE_FLOATS,
                                  .queries = s->scratch + 2ull * TILE_FLOATS,
                                  .out = s->scratch + 3ull * TILE_FLOATS,
                                  .scores = scores,
                                  .max = max,
                                  .sum = max + STATES_MAX};
}

/* How many heads of the group fit their sums into scratch memory at once. */
static uint32_t heads_at_once(const struct sequence *s, uint32_t queries)
{
    uint32_t most = (uint32_t)(BLOCK_HEADS * TILE_FLOATS / (queries * rounded_ld(s)));
    return s->as == VALUES_F32 ? s->group : min_u32(s->group, most);
}

/* The running softmax of n queries of head h from `begin` on; rows of the sums are ld apart. */
struct running_softmax {
    uint32_t h, begin, n;
    float *max, *sum, *sums;
    size_t ld;
};

/* Returns the running softmax of head h, which is number `index` of the heads that are handled at once. */
static struct running_softmax running_of(const struct sequence *s, const struct forward_tiles *t, uint32_t h,
                                         uint32_t index, uint32_t begin, uint32_t n)
{
    size_t first = (size_t)index * n;
    struct running_softmax r = {.h = h, .begin = begin, .n = n, .max = t->max + first, .sum = t->sum + first};
    if (s->as == VALUES_F32) {
        r.ld = s->ldo;
        r.sums = (float *)operand_at(s->out) + s->out_at + begin * s->ldo + (size_t)h * s->head_dim;
    } else {
        r.ld = rounded_ld(s);
        r.sums = t->out + first * r.ld;
    }
    return r;
}

/* scores = q k^T for the queries and the tile of transposed keys. */
static void tile_scores(const struct sequence *s, const struct forward_tiles *t,
                        const struct running_softmax *r)
{
    for (uint32_t i = 0; i < r->n; i += TILE) {
        size_t ld, at = (r->begin + i) * s->q.ld + (size_t)r->h * s->head_dim;
        uint32_t rows = min_u32(TILE, r->n - i);
        const float *q = rows_in_f32(s, &s->q, at, rows, t->queries, &ld);
        s->kernels->tile(&(struct tile_product){.m = rows,
                                                .n = TILE,
                                                .k = s->head_dim,
                                                .a = q,
                                                .a_row = ld,
                                                .a_col = 1,
                                                .b = t->keys,
                                                .ldb = TILE,
                                                .c = t->scores + (size_t)i * TILE,
                                                .ldc = TILE});
    }
}

/* Turns one row of a tile's scores into probabilities. Returns the factor by which the sums made so far must
 * be multiplied, because the running maximum has changed. */
static float row_softmax(const struct sequence *s, const struct score_row *row, float *max, float *sum)
{
    if (s->as == VALUES_F32)
        return s->kernels->softmax_tile(row, max, sum);
    return s->kernels->softmax_tile_rounded(s->as, row, max, sum);
}

/* The row of scores of the query at `position`, over the tile of keys [first, first + count). */
static struct score_row score_row_of(const struct sequence *s, float *scores, uint32_t position,
                                     uint32_t first, uint32_t count)
{
    return (struct score_row){.s = scores,
                              .hidden = hidden(s, position, first, count),
                              .valid = visible(position, first, count),
                              .n = TILE,
                              .scale = s->scale,
                              .cap = s->cap};
}

/* Keys [first, first + count) and their values v. */
struct key_tile {
    uint32_t first, count;
    const float *v;
    size_t ldv;
};

/* Adds a tile of keys to the running softmax. */
static void forward_tile(const struct sequence *s, const struct forward_tiles *t, const struct key_tile *keys,
                         const struct running_softmax *r)
{
    tile_scores(s, t, r);
    for (uint32_t i = 0; i < r->n; i++) {
        struct score_row row =
            score_row_of(s, t->scores + (size_t)i * TILE, s->offset + r->begin + i, keys->first, keys->count);
        float *o = r->sums + i * r->ld;
        bool nothing_before = r->max[i] == -INFINITY;
        if (nothing_before)
            memset(o, 0, s->head_dim * sizeof(*o));
        if (row.hidden >= row.valid) {
            memset(row.s, 0, TILE * sizeof(*row.s));
            continue;
        }
        float correction = row_softmax(s, &row, &r->max[i], &r->sum[i]);
        if (!nothing_before && correction != 1.0f)
            s->kernels->scale(o, correction, o, s->head_dim);
    }
    s->kernels->tile(&(struct tile_product){.m = r->n,
                                            .n = s->head_dim,
                                            .k = keys->count,
                                            .a = t->scores,
                                            .a_row = TILE,
                                            .a_col = 1,
                                            .b = keys->v,
                                            .ldb = keys->ldv,
                                            .c = r->sums,
                                            .ldc = r->ld,
                                            .accumulate = true});
}

/* Divides the sums by the softmax sums, which gives the output, and writes lse. */
static void forward_finish(const struct sequence *s, const struct running_softmax *r)
{
    bool rounds = s->as != VALUES_F32;
    for (uint32_t i = 0; i < r->n; i++) {
        float *o = r->sums + i * r->ld;
        s->kernels->scale(o, 1.0f / r->sum[i], o, s->head_dim);
        if (rounds) {
            const struct gemm_values row = {.at = o, .ld = r->ld, .kind = VALUES_F32};
            float rounded[ATTENTION_HEAD_DIM_MAX];
            s->kernels->round_rows(s->as, &row, 0, 1, s->head_dim, rounded, ATTENTION_HEAD_DIM_MAX);
            values_write(s->kernels, rounded, s->out,
                         s->out_at + (r->begin + i) * s->ldo + (size_t)r->h * s->head_dim, s->head_dim);
        }
        double base = rounds ? (double)r->max[i] * 0.693147180559945309 : (double)r->max[i];
        if (s->lse)
            s->lse[(size_t)(r->begin + i) * s->ldl + r->h] =
                rounds ? (float)(base + log((double)r->sum[i])) : r->max[i] + logf(r->sum[i]);
    }
}

/* Begins the running softmax with the head's sink, which has no value, or with nothing. */
static void forward_begin(const struct sequence *s, const struct running_softmax *r)
{
    float score = s->sinks ? s->sinks[r->h] : -INFINITY, max = score, sum = score > -INFINITY ? 1.0f : 0.0f;
    if (s->as != VALUES_F32 && sum > 0.0f) {
        score *= 1.44269504088896341f;
        max = ceilf(score);
        sum = exp2f(score - max);
    }
    for (uint32_t i = 0; i < r->n; i++) {
        r->max[i] = max;
        r->sum[i] = sum;
        if (sum > 0.0f)
            memset(r->sums + i * r->ld, 0, s->head_dim * sizeof(*r->sums));
    }
}

/* Runs queries [begin, end), at most block_queries(), of heads [first_head, last_head) of the group. */
static void heads_forward(const struct sequence *s, uint32_t begin, uint32_t end, uint32_t first_head,
                          uint32_t last_head)
{
    const struct forward_tiles t = forward_tiles_of(s);
    uint32_t n = end - begin, last = s->offset + end, heads = last_head - first_head;
    for (uint32_t i = 0; i < heads; i++) {
        struct running_softmax running = running_of(s, &t, first_head + i, i, begin, n);
        forward_begin(s, &running);
    }
    for (uint32_t first = first_tile(s, s->offset + begin); first < last; first += TILE) {
        struct key_tile keys = {.first = first, .count = min_u32(TILE, last - first)};
        transpose_tile(s, &s->k, first, keys.count, t.keys);
        keys.v = rows_in_f32(s, &s->v, first * s->v.ld, keys.count, t.values, &keys.ldv);
        for (uint32_t i = 0; i < heads; i++) {
            struct running_softmax running = running_of(s, &t, first_head + i, i, begin, n);
            forward_tile(s, &t, &keys, &running);
        }
    }
    for (uint32_t i = 0; i < heads; i++) {
        struct running_softmax running = running_of(s, &t, first_head + i, i, begin, n);
        forward_finish(s, &running);
    }
}

static void sequence_forward(const struct sequence *s, uint32_t begin, uint32_t end)
{
    uint32_t step = heads_at_once(s, end - begin);
    for (uint32_t head = 0; head < s->group; head += step)
        heads_forward(s, begin, end, head, min_u32(head + step, s->group));
}

struct backward_tiles {
    float *keys, *values; /* transposed, [head_dim][TILE] */
    float *dk, *dv;       /* [TILE][head_dim] */
    float *q, *dout, *k;  /* room for rounded tiles, [TILE][rounded_ld] */
    float *p, *dp;        /* [TILE][TILE] */
};

/* A tile of queries of head h from `begin` on, and a tile of keys from `first` on; q, dout and k are in fp32.
 */
struct tile_pair {
    uint32_t h, begin, queries, first, keys;
    const float *q, *dout, *k;
    size_t ldq, ldo, ldk;
};

static struct backward_tiles backward_tiles_of(const struct sequence *s)
{
    return (struct backward_tiles){
        .keys = s->scratch,
        .values = s->scratch + TILE_FLOATS,
        .dk = s->scratch + 2ull * TILE_FLOATS,
        .dv = s->scratch + 3ull * TILE_FLOATS,
        .q = s->scratch + 4ull * TILE_FLOATS,
        .dout = s->scratch + 5ull * TILE_FLOATS,
        .k = s->scratch + 6ull * TILE_FLOATS,
        .p = s->scratch + 7ull * TILE_FLOATS,
        .dp = s->scratch + 7ull * TILE_FLOATS + TILE * TILE,
    };
}

/* Pairs the tile of queries of head h that begins at `begin` with the tile of keys [first, first + count),
 * and rounds the queries' operands if needed. keys_begin() must have prepared the keys. */
static struct tile_pair cpu_pair_of(const struct sequence *s, const struct backward_tiles *t, uint32_t h,
                                    uint32_t begin, uint32_t first, uint32_t count)
{
    struct tile_pair at = {.h = h,
                           .begin = begin,
                           .queries = min_u32(TILE, s->queries - begin),
                           .first = first,
                           .keys = count,
                           .k = s->as == VALUES_F32 ? (const float *)s->k.at + first * s->k.ld : t->k,
                           .ldk = s->as == VALUES_F32 ? s->k.ld : rounded_ld(s)};
    size_t head = (size_t)h * s->head_dim;
    at.q = rows_in_f32(s, &s->q, begin * s->q.ld + head, at.queries, t->q, &at.ldq);
    at.dout = rows_in_f32(s, &s->dout, begin * s->ldo + head, at.queries, t->dout, &at.ldo);
    return at;
}

/* Computes the pair's probabilities in p, and the gradient of its scores in dp. */
static void backward_scores(const struct sequence *s, const struct tile_pair *at,
                            const struct backward_tiles *t)
{
    const struct kernels *kernels = s->kernels;
    uint32_t n = at->queries, d = s->head_dim;
    struct tile_product product = {.m = n, .n = TILE, .k = d, .a_col = 1, .ldb = TILE, .ldc = TILE};
    product.a = at->q;
    product.a_row = at->ldq;
    product.b = t->keys;
    product.c = t->p;
    kernels->tile(&product);
    product.a = at->dout;
    product.a_row = at->ldo;
    product.b = t->values;
    product.c = t->dp;
    kernels->tile(&product);
    for (uint32_t i = 0; i < n; i++) {
        size_t state = (size_t)(at->begin + i) * s->ldl + at->h;
        struct score_row row = score_row_of(s, t->p + (size_t)i * TILE, at->begin + i, at->first, at->keys);
        kernels->softmax_tile_backward(s->as, &row, t->dp + (size_t)i * TILE, s->lse[state], s->delta[state]);
    }
}

static void backward_of_keys(const struct sequence *s, const struct tile_pair *at,
                             const struct backward_tiles *t)
{
    uint32_t d = s->head_dim;
    struct tile_product product = {
        .m = at->keys, .n = d, .k = at->queries, .a_row = 1, .a_col = TILE, .ldc = d, .accumulate = true};
    product.a = t->p;
    product.b = at->dout;
    product.ldb = at->ldo;
    product.c = t->dv;
    s->kernels->tile(&product);
    product.a = t->dp;
    product.b = at->q;
    product.ldb = at->ldq;
    product.c = t->dk;
    s->kernels->tile(&product);
}

static void backward_of_queries(const struct sequence *s, const struct tile_pair *at,
                                const struct backward_tiles *t)
{
    s->kernels->tile(&(struct tile_product){.m = at->queries,
                                            .n = s->head_dim,
                                            .k = at->keys,
                                            .a = t->dp,
                                            .a_row = TILE,
                                            .a_col = 1,
                                            .b = at->k,
                                            .ldb = at->ldk,
                                            .c = s->dq + at->begin * s->q.ld + (size_t)at->h * s->head_dim,
                                            .ldc = s->q.ld,
                                            .accumulate = at->first != first_tile(s, at->begin)});
}

static void sequence_delta(const struct sequence *s, uint32_t begin, uint32_t end)
{
    const struct gemm_values out = attention_matrix_of(s->out, s->out_at, s->ldo);
    float room[ATTENTION_HEAD_DIM_MAX];
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t h = 0; h < s->group; h++) {
            size_t at = (size_t)i * s->ldo + (size_t)h * s->head_dim, ld;
            const float *o = rows_in_f32(s, &out, at, 1, room, &ld), *dout = s->dout.at;
            s->delta[(size_t)i * s->ldl + h] = s->kernels->dot(o, dout + at, s->head_dim);
        }
}

/* Transposes a tile of keys and one of values; rounds the keys in `k`, if needed, for products that read them
 * row by row. */
static void keys_begin(const struct sequence *s, uint32_t first, uint32_t count,
                       const struct backward_tiles *t)
{
    size_t ld;
    transpose_tile(s, &s->k, first, count, t->keys);
    transpose_tile(s, &s->v, first, count, t->values);
    (void)rows_in_f32(s, &s->k, first * s->k.ld, count, t->k, &ld);
}

/* Computes dk and dv of the key tile from `first` on; with `queries` it also adds that tile's share to dq. */
static void sequence_backward_keys(const struct sequence *s, uint32_t first, bool queries)
{
    const struct backward_tiles t = backward_tiles_of(s);
    size_t row_bytes = s->head_dim * sizeof(float), ld = s->k.ld;
    uint32_t count = min_u32(TILE, s->queries - first);
    keys_begin(s, first, count, &t);
    memset(t.dk, 0, count * row_bytes);
    memset(t.dv, 0, count * row_bytes);
    for (uint32_t h = 0; h < s->group; h++)
        for (uint32_t begin = first; begin < s->queries && first_tile(s, begin) <= first; begin += TILE) {
            struct tile_pair at = cpu_pair_of(s, &t, h, begin, first, count);
            backward_scores(s, &at, &t);
            backward_of_keys(s, &at, &t);
            if (queries)
                backward_of_queries(s, &at, &t);
        }
    for (uint32_t j = 0; j < count; j++) {
        memcpy(s->dk + (size_t)(first + j) * ld, t.dk + (size_t)j * s->head_dim, row_bytes);
        memcpy(s->dv + (size_t)(first + j) * ld, t.dv + (size_t)j * s->head_dim, row_bytes);
    }
}

/* Computes dq of the query tile from `begin` on. */
static void sequence_backward_queries(const struct sequence *s, uint32_t begin)
{
    const struct backward_tiles t = backward_tiles_of(s);
    for (uint32_t first = first_tile(s, begin); first <= begin; first += TILE) {
        uint32_t count = min_u32(TILE, s->queries - first);
        keys_begin(s, first, count, &t);
        for (uint32_t h = 0; h < s->group; h++) {
            struct tile_pair at = cpu_pair_of(s, &t, h, begin, first, count);
            backward_scores(s, &at, &t);
            backward_of_queries(s, &at, &t);
        }
    }
}

/* --- parts --- */

uint32_t attention_parts(const struct attention_cut *cut)
{
    return cut->rows == 0 ? 0 : (cut->row_start[cut->rows] / cut->step + cut->rows) * cut->kv_heads;
}

/* Parts are numbered row by row. The numbers of row r's runs of queries begin at row_start[r] / step + r,
 * which leaves enough numbers for each row and needs no table; numbers left over have no work. */
bool attention_part_at(const struct attention_cut *cut, uint32_t index, struct attention_part *part)
{
    /* Binary search for the row to which run number `stretch` belongs: the last row whose first run has no
     * greater number. */
    uint32_t stretch = index / cut->kv_heads, low = 0, high = cut->rows;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (cut->row_start[middle] / cut->step + middle <= stretch)
            low = middle;
        else
            high = middle;
    }
    uint32_t begin = cut->row_start[low], length = cut->row_start[low + 1] - begin;
    uint64_t first = (uint64_t)(stretch - begin / cut->step - low) * cut->step;
    if (first >= length)
        return false;
    *part = (struct attention_part){.row = low,
                                    .kv = index % cut->kv_heads,
                                    .begin = (uint32_t)first,
                                    .end = min_u32((uint32_t)first + cut->step, length)};
    return true;
}

struct attention_cut attention_forward_cut(uint32_t rows, const uint32_t *row_start, uint32_t heads,
                                           uint32_t kv_heads)
{
    return (struct attention_cut){row_start, rows, kv_heads, block_queries(heads / kv_heads)};
}

struct attention_cut attention_backward_cut(uint32_t threads, uint32_t rows, const uint32_t *row_start,
                                            uint32_t kv_heads)
{
    double most = 0, total = 0;
    uint32_t longest = 1;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t length = row_start[row + 1] - row_start[row];
        double work = (double)length * length;
        most = work > most ? work : most;
        longest = length > longest ? length : longest;
        total += work * kv_heads;
    }
    /* Cut by whole rows, the op finishes when its largest row is done. Cut in tiles, it finishes after each
     * thread's equal share, which is 7 / 5 as much, because it takes 7 products instead of 5. */
    bool pieces = 5 * most * threads > 7 * total && longest > TILE;
    return (struct attention_cut){row_start, rows, kv_heads,
                                  pieces           ? TILE
                                  : longest > TILE ? longest
                                                   : TILE + 1};
}

struct attention_job {
    struct cpu_runner *runner;
    const struct op_attention *forward;
    const struct op_attention_backward *backward;
    const struct op_attention_cached *cached;
    struct attention_cut cut;
    uint32_t parts;
};

/* Fills *part with the part of this number; false if it is empty. Parts are numbered from the end, because
 * the last parts of a row see the most keys and should begin first. */
static bool job_part(const struct attention_job *job, uint32_t index, struct attention_part *part)
{
    return attention_part_at(&job->cut, job->parts - 1 - index, part);
}

/* The sinks of the heads from `head` on, or NULL. */
static const float *sinks_at(const struct operand *sinks, size_t head)
{
    return sinks->buffer ? (const float *)operand_at(sinks) + head : NULL;
}

/* Where the operands of one row and one key head begin, for the query heads that share it. */
struct attention_offsets {
    uint32_t queries, group;
    size_t q, k, out, state; /* values from the operand's beginning */
};

static struct attention_offsets offsets_of(const struct attention_part *part, const uint32_t *row_start,
                                           const struct op_attention *op)
{
    uint32_t group = op->heads / op->kv_heads;
    size_t begin = row_start[part->row], head = (size_t)part->kv * group;
    return (struct attention_offsets){
        .queries = row_start[part->row + 1] - row_start[part->row],
        .group = group,
        .q = begin * op->ld + head * op->head_dim,
        .k = begin * op->ld + (size_t)part->kv * op->head_dim,
        .out = (begin * op->heads + head) * op->head_dim,
        .state = begin * op->heads + head,
    };
}

static uint32_t attention_window_of(uint32_t window)
{
    return window == 0 ? UINT32_MAX : window;
}

static struct sequence sequence_of(const struct attention_job *job, const struct op_attention *op,
                                   const struct attention_part *part, uint32_t thread)
{
    struct attention_offsets at = offsets_of(part, job->cut.row_start, op);
    return (struct sequence){
        .kernels = job->runner->kernels,
        .as = value_kind_of(op->compute),
        .queries = at.queries,
        .group = at.group,
        .head_dim = op->head_dim,
        .window = attention_window_of(op->window),
        .scale = op->scale,
        .cap = op->cap,
        .q = attention_matrix_of(&op->q, at.q, op->ld),
        .k = attention_matrix_of(&op->k, at.k, op->ld),
        .v = attention_matrix_of(&op->v, at.k, op->ld),
        .out = &op->out,
        .out_at = at.out,
        .ldo = (size_t)op->heads * op->head_dim,
        .lse = (float *)operand_at(&op->lse) + at.state,
        .ldl = op->heads,
        .sinks = sinks_at(&op->sinks, (size_t)part->kv * at.group),
        .scratch = job->runner->scratch + thread * job->runner->scratch_floats,
    };
}

static void forward_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    struct attention_part part;
    if (!job_part(job, index, &part))
        return;
    struct sequence s = sequence_of(job, job->forward, &part, thread);
    sequence_forward(&s, part.begin, part.end);
}

static struct sequence backward_sequence(const struct attention_job *job, const struct attention_part *part,
                                         uint32_t thread)
{
    const struct op_attention_backward *op = job->backward;
    struct attention_offsets at = offsets_of(part, job->cut.row_start, &op->forward);
    struct sequence s = sequence_of(job, &op->forward, part, thread);
    s.dout = attention_matrix_of(&op->dout, at.out, s.ldo);
    s.delta = (float *)operand_at(&op->delta) + at.state;
    s.dq = (float *)operand_at(&op->dq) + at.q;
    s.dk = (float *)operand_at(&op->dk) + at.k;
    s.dv = (float *)operand_at(&op->dv) + at.k;
    return s;
}

/* Runs backward for a whole row. */
static void backward_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    struct attention_part part;
    if (!job_part(job, index, &part))
        return;
    struct sequence s = backward_sequence(job, &part, thread);
    sequence_delta(&s, 0, s.queries);
    for (uint32_t first = 0; first < s.queries; first += TILE)
        sequence_backward_keys(&s, first, true);
}

static void attention_delta_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    struct attention_part part;
    if (!job_part(job, index, &part))
        return;
    struct sequence s = backward_sequence(job, &part, thread);
    sequence_delta(&s, part.begin, part.end);
}

/* Runs backward for one tile: even numbers are tiles of queries, and the odd number after each is the same
 * tile of keys. */
static void backward_tile_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    struct attention_part part;
    if (!job_part(job, index / 2, &part))
        return;
    struct sequence s = backward_sequence(job, &part, thread);
    if (index % 2 == 0)
        sequence_backward_queries(&s, part.begin);
    else
        sequence_backward_keys(&s, part.begin, false);
}

static void cached_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    const struct op_attention_cached *op = job->cached;
    struct attention_part part;
    if (!job_part(job, index, &part))
        return;
    uint32_t kv = part.kv, group = op->heads / op->kv_heads;
    size_t head = (size_t)kv * group * op->head_dim;
    struct sequence s = {
        .kernels = job->runner->kernels,
        .as = value_kind_of(op->compute),
        .queries = op->tokens,
        .offset = op->begin,
        .group = group,
        .head_dim = op->head_dim,
        .window = attention_window_of(op->window),
        .scale = op->scale,
        .cap = op->cap,
        .q = attention_matrix_of(&op->q, head, op->ldq),
        .k = attention_matrix_of(&op->k, (size_t)kv * op->head_dim, (size_t)op->kv_heads * op->head_dim),
        .v = attention_matrix_of(&op->v, (size_t)kv * op->head_dim, (size_t)op->kv_heads * op->head_dim),
        .out = &op->out,
        .out_at = head,
        .ldo = (size_t)op->heads * op->head_dim,
        .sinks = sinks_at(&op->sinks, (size_t)kv * group),
        .scratch = job->runner->scratch + thread * job->runner->scratch_floats,
    };
    sequence_forward(&s, part.begin, part.end);
}

/* One head's sink: its gradient is the sum over tokens of -exp(sink - lse) * delta. */
static void sink_part(void *context, uint32_t head, uint32_t thread)
{
    const struct op_attention_backward *op = ((const struct attention_job *)context)->backward;
    const float *lse = operand_at(&op->forward.lse), *delta = operand_at(&op->delta);
    double sink = (double)((const float *)operand_at(&op->forward.sinks))[head], sum = 0;
    float *to = (float *)operand_at(&op->dsinks) + head;
    (void)thread;
    for (size_t i = head; i < (size_t)op->forward.tokens * op->forward.heads; i += op->forward.heads)
        sum -= exp(sink - (double)lse[i]) * (double)delta[i];
    *to = (float)((double)*to + sum);
}

void cpu_attention(struct cpu_runner *runner, const struct op *op)
{
    const struct op_attention *a = &op->attention;
    struct attention_job job = {
        .runner = runner,
        .forward = a,
        .cut = attention_forward_cut(a->rows, operand_at(&a->row_start), a->heads, a->kv_heads)};
    job.parts = attention_parts(&job.cut);
    pool_run(runner->pool, job.parts, forward_part, &job);
}

void cpu_attention_backward(struct cpu_runner *runner, const struct op *op)
{
    const struct op_attention_backward *a = &op->attention_backward;
    struct attention_job job = {.runner = runner,
                                .backward = a,
                                .cut = attention_backward_cut(pool_threads(runner->pool), a->forward.rows,
                                                              operand_at(&a->forward.row_start),
                                                              a->forward.kv_heads)};
    job.parts = attention_parts(&job.cut);
    if (job.cut.step != TILE) {
        pool_run(runner->pool, job.parts, backward_part, &job);
    } else {
        pool_run(runner->pool, job.parts, attention_delta_part, &job);
        pool_run(runner->pool, 2 * job.parts, backward_tile_part, &job);
    }
    if (a->forward.sinks.buffer && a->dsinks.buffer)
        pool_run(runner->pool, a->forward.heads, sink_part, &job);
}

void cpu_attention_cached(struct cpu_runner *runner, const struct op *op)
{
    const struct op_attention_cached *a = &op->attention_cached;
    const uint32_t row_start[] = {0, a->tokens};
    struct attention_job job = {
        .runner = runner, .cached = a, .cut = attention_forward_cut(1, row_start, a->heads, a->kv_heads)};
    job.parts = attention_parts(&job.cut);
    pool_run(runner->pool, job.parts, cached_part, &job);
}
