/* Attention in tiles of 64 keys: a key tile is transposed once and then used by a block of queries of all
 * heads that share it. Forward, a part is such a block: queries of one row, one key head.
 *
 * Backward, a part is one (row, key head), which computes each tile of probabilities once and adds it to the
 * gradients of queries, keys and values. Where that leaves threads without work (a long row, few key heads),
 * parts are tiles of keys and tiles of queries, and the probabilities are computed for both: 7 products in
 * place of 5. Either way each sum has the same terms in the same order, so threads change no bit.
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

/* Queries [begin, end), at most block_queries(). */
static void sequence_forward(const struct sequence *s, uint32_t begin, uint32_t end)
{
    uint32_t step = end - begin, last = s->offset + end;
    float *keys = s->scratch, *scores = keys + (size_t)ATTENTION_HEAD_DIM_MAX * TILE;
    float *max = scores + (size_t)BLOCK_HEADS * TILE * TILE, *sum = max + STATES_MAX;
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

struct backward_tiles {
    float *keys, *values; /* transposed, [head_dim][TILE] */
    float *dk, *dv;       /* [TILE][head_dim] */
    float *p, *dp;        /* [TILE][TILE] */
};

/* Queries of head h from `begin` on against keys from `first` on, a tile of each. */
struct tile_pair {
    uint32_t h, begin, queries, first, keys;
};

static struct backward_tiles backward_tiles_of(const struct sequence *s)
{
    size_t tile = (size_t)ATTENTION_HEAD_DIM_MAX * TILE;
    return (struct backward_tiles){
        .keys = s->scratch,
        .values = s->scratch + tile,
        .dk = s->scratch + 2 * tile,
        .dv = s->scratch + 3 * tile,
        .p = s->scratch + 4 * tile,
        .dp = s->scratch + 4 * tile + TILE * TILE,
    };
}

/* p, and the gradient of its scores. */
static void backward_scores(const struct sequence *s, struct tile_pair at, const struct backward_tiles *t)
{
    const struct kernels *kernels = s->kernels;
    uint32_t n = at.queries, d = s->head_dim;
    size_t head = (size_t)at.h * d;
    kernels->tile(n, TILE, d, s->q + at.begin * s->ldq + head, s->ldq, 1, t->keys, TILE, t->p, TILE, false);
    kernels->tile(n, TILE, d, s->dout + at.begin * s->ldo + head, s->ldo, 1, t->values, TILE, t->dp, TILE,
                  false);
    for (uint32_t i = 0; i < n; i++) {
        size_t state = (size_t)(at.begin + i) * s->ldl + at.h;
        kernels->softmax_tile_backward(
            t->p + (size_t)i * TILE, t->dp + (size_t)i * TILE, hidden(s, at.begin + i, at.first, at.keys),
            visible(at.begin + i, at.first, at.keys), TILE, s->scale, s->cap, s->lse[state], s->delta[state]);
    }
}

static void backward_of_keys(const struct sequence *s, struct tile_pair at, const struct backward_tiles *t)
{
    uint32_t d = s->head_dim;
    const float *q = s->q + at.begin * s->ldq + (size_t)at.h * d;
    const float *dout = s->dout + at.begin * s->ldo + (size_t)at.h * d;
    s->kernels->tile(at.keys, d, at.queries, t->p, 1, TILE, dout, s->ldo, t->dv, d, true);
    s->kernels->tile(at.keys, d, at.queries, t->dp, 1, TILE, q, s->ldq, t->dk, d, true);
}

static void backward_of_queries(const struct sequence *s, struct tile_pair at, const struct backward_tiles *t)
{
    s->kernels->tile(at.queries, s->head_dim, at.keys, t->dp, TILE, 1, s->k + (size_t)at.first * s->ldk,
                     s->ldk, s->dq + at.begin * s->ldq + (size_t)at.h * s->head_dim, s->ldq,
                     at.first != first_tile(s, at.begin));
}

static void sequence_delta(const struct sequence *s, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        for (uint32_t h = 0; h < s->group; h++) {
            size_t at = (size_t)i * s->ldo + (size_t)h * s->head_dim;
            s->delta[(size_t)i * s->ldl + h] = s->kernels->dot(s->out + at, s->dout + at, s->head_dim);
        }
}

static void transpose_both(const struct sequence *s, uint32_t first, uint32_t count,
                           const struct backward_tiles *t)
{
    transpose_tile(s->k + first * s->ldk, s->ldk, count, s->head_dim, t->keys);
    transpose_tile(s->v + first * s->ldk, s->ldk, count, s->head_dim, t->values);
}

/* dk and dv of the tile of keys from `first` on; with `queries` also what it adds to dq. */
static void sequence_backward_keys(const struct sequence *s, uint32_t first, bool queries)
{
    const struct backward_tiles t = backward_tiles_of(s);
    size_t row_bytes = s->head_dim * sizeof(float);
    uint32_t count = min_u32(TILE, s->queries - first);
    transpose_both(s, first, count, &t);
    memset(t.dk, 0, count * row_bytes);
    memset(t.dv, 0, count * row_bytes);
    for (uint32_t h = 0; h < s->group; h++)
        for (uint32_t begin = first; begin < s->queries && first_tile(s, begin) <= first; begin += TILE) {
            struct tile_pair at = {h, begin, min_u32(TILE, s->queries - begin), first, count};
            backward_scores(s, at, &t);
            backward_of_keys(s, at, &t);
            if (queries)
                backward_of_queries(s, at, &t);
        }
    for (uint32_t j = 0; j < count; j++) {
        memcpy(s->dk + (size_t)(first + j) * s->ldk, t.dk + (size_t)j * s->head_dim, row_bytes);
        memcpy(s->dv + (size_t)(first + j) * s->ldk, t.dv + (size_t)j * s->head_dim, row_bytes);
    }
}

/* dq of the tile of queries from `begin` on. */
static void sequence_backward_queries(const struct sequence *s, uint32_t begin)
{
    const struct backward_tiles t = backward_tiles_of(s);
    for (uint32_t first = first_tile(s, begin); first <= begin; first += TILE) {
        uint32_t count = min_u32(TILE, s->queries - first);
        transpose_both(s, first, count, &t);
        for (uint32_t h = 0; h < s->group; h++) {
            struct tile_pair at = {h, begin, min_u32(TILE, s->queries - begin), first, count};
            backward_scores(s, at, &t);
            backward_of_queries(s, at, &t);
        }
    }
}

/* --- parts --- */

uint32_t attention_parts(const struct attention_cut *cut)
{
    return cut->rows == 0 ? 0 : (cut->row_start[cut->rows] / cut->step + cut->rows) * cut->kv_heads;
}

/* Row r's stretches are numbered from row_start[r] / step + r on, which leaves each row enough and needs no
 * table; numbers that are left over have no work. */
bool attention_part_at(const struct attention_cut *cut, uint32_t index, struct attention_part *part)
{
    uint32_t stretch = index / cut->kv_heads, low = 0, high = cut->rows; /* the last row that begins by it */
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
    /* whole rows end with the largest, pieces after 7 / 5 of everybody's share */
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

/* The part of a number. The last ones of a row see the most keys and so come first. */
static bool job_part(const struct attention_job *job, uint32_t index, struct attention_part *part)
{
    return attention_part_at(&job->cut, job->parts - 1 - index, part);
}

/* Where a row and a key head with the query heads that use it lie. */
struct place {
    uint32_t queries, group;
    size_t q, k, out, state; /* values from the operand's beginning */
};

static struct place place_of(const struct attention_part *part, const uint32_t *row_start, uint32_t heads,
                             uint32_t kv_heads, uint32_t head_dim, uint32_t ld)
{
    uint32_t group = heads / kv_heads;
    size_t begin = row_start[part->row], head = (size_t)part->kv * group;
    return (struct place){
        .queries = row_start[part->row + 1] - row_start[part->row],
        .group = group,
        .q = begin * ld + head * head_dim,
        .k = begin * ld + (size_t)part->kv * head_dim,
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
    struct attention_part part;
    if (!job_part(job, index, &part))
        return;
    struct place at = place_of(&part, job->cut.row_start, op->heads, op->kv_heads, op->head_dim, op->ld);
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
    sequence_forward(&s, part.begin, part.end);
}

static struct sequence backward_sequence(const struct attention_job *job, const struct attention_part *part,
                                         uint32_t thread)
{
    const struct op_attention_backward *op = job->backward;
    struct place at = place_of(part, job->cut.row_start, op->heads, op->kv_heads, op->head_dim, op->ld);
    return (struct sequence){
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
}

/* A row as a whole, unless it is cut. */
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

static void delta_part(void *context, uint32_t index, uint32_t thread)
{
    const struct attention_job *job = context;
    struct attention_part part;
    if (!job_part(job, index, &part))
        return;
    struct sequence s = backward_sequence(job, &part, thread);
    sequence_delta(&s, part.begin, part.end);
}

/* Of two parts in succession one is a tile of queries, the other the same of keys. */
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
    sequence_forward(&s, part.begin, part.end);
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
                                .cut = attention_backward_cut(pool_threads(runner->pool), a->rows,
                                                              operand_at(&a->row_start), a->kv_heads)};
    job.parts = attention_parts(&job.cut);
    if (job.cut.step != TILE) {
        pool_run(runner->pool, job.parts, backward_part, &job);
        return;
    }
    pool_run(runner->pool, job.parts, delta_part, &job);
    pool_run(runner->pool, 2 * job.parts, backward_tile_part, &job);
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
