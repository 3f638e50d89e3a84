/* Tests which rank stores a piece of a checkpoint: however ranks share out the state, every value of every
 * tensor is stored once. The plans are drawn from seeds, and only the fields of a rank that the rule reads
 * are filled in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "program/update.h"
#include "support/must.h"
#include "worker/checkpoint/area.h"
#include "worker/checkpoint/keeper.h"

enum { BLOCKS = 5, RANKS_MAX = 6, EXPERTS = 4, ROWS = 64, COLUMNS = 96, SEEDS = 200, NAME_SIZE = 64 };

/* How many times each value of each tensor is stored. */
struct stored {
    uint8_t norm[BLOCKS][ROWS], matrix[BLOCKS][ROWS * COLUMNS], expert[BLOCKS][EXPERTS];
};

static void expect_once(const struct stored *stored, bool with_experts, const char *what, uint64_t seed)
{
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < ROWS; i++)
            if (stored->norm[b][i] != 1)
                fail_msg("%s, seed %llu: a norm of block %d is stored %u times", what,
                         (unsigned long long)seed, b, stored->norm[b][i]);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            if (stored->matrix[b][i] != 1)
                fail_msg("%s, seed %llu: a value of block %d is stored %u times", what,
                         (unsigned long long)seed, b, stored->matrix[b][i]);
        for (int e = 0; e < EXPERTS && with_experts; e++)
            if (stored->expert[b][e] != 1)
                fail_msg("%s, seed %llu: expert %d of block %d is stored %u times", what,
                         (unsigned long long)seed, e, b, stored->expert[b][e]);
    }
}

static struct shard_piece norm_of(int32_t block, bool alike)
{
    return (struct shard_piece){.of = {.name = "model.layers.N.input_layernorm.weight",
                                       .rows = ROWS,
                                       .columns = 1,
                                       .vector = true,
                                       .block = (uint32_t)block,
                                       .whole_rows = ROWS,
                                       .whole_columns = 1,
                                       .alike = alike},
                                .count = ROWS};
}

/* Counts the parts of a block's norm and matrix that a rank keeps, if the rule says that this rank stores
 * them. */
static void store(struct stored *stored, const struct plan *plan, uint32_t rank, struct shard_piece piece)
{
    if (piece.count == 0 || !piece_is_stored_by(plan, rank, &piece))
        return;
    struct area area = area_of_piece(&piece);
    uint8_t *of = piece.of.vector ? stored->norm[piece.of.block] : stored->matrix[piece.of.block];
    for (uint64_t i = area.first; i < area.first + area.count; i++)
        of[(area.row + i / area.columns) * piece.of.whole_columns + area.column + i % area.columns]++;
}

static struct shard_piece matrix_of(int32_t block)
{
    return (struct shard_piece){.of = {.name = "model.layers.N.mlp.up_proj.weight",
                                       .rows = ROWS,
                                       .columns = COLUMNS,
                                       .block = (uint32_t)block,
                                       .whole_rows = ROWS,
                                       .whole_columns = COLUMNS,
                                       .alike = true},
                                .count = ROWS * COLUMNS};
}

/* Fills a program that computes blocks, runs their optimiser step (with a group, or PLAN_NONE), or pushes
 * them as a server's holder does. */
static void program_fill(struct plan_rank *rank, bool computes, bool steps, int32_t group, bool pushes)
{
    struct err err;
    struct program_builder builder = {0};
    struct instr x = instr_init(INSTR_FORWARD, QUEUE_COMPUTE);
    x.block_begin = rank->block_begin;
    x.block_end = rank->block_end;
    if (computes)
        program_add(&builder, &x, NULL, 0);
    if (pushes) {
        x = instr_init(INSTR_PUSH, QUEUE_SEND);
        x.block_begin = 1;
        x.block_end = 2;
        x.slot_in = 0;
        program_add(&builder, &x, NULL, 0);
    }
    x = instr_init(INSTR_STEP, QUEUE_COMPUTE);
    x.block_end = BLOCKS;
    x.group = group;
    if (steps)
        program_add(&builder, &x, NULL, 0);
    check(program_builder_take(&builder, &rank->programs[PROGRAM_TRAIN], &err));
    check(plan_updates_find(rank, &err));
}

static struct plan *plan_make(uint32_t ranks, enum plan_placement placement)
{
    struct err err;
    struct plan *plan = plan_create(ranks, 2, 8, 1, &err);
    assert_non_null(plan);
    plan->placement = placement;
    plan->block_count = BLOCKS;
    plan->groups[1].rank_count = ranks;
    plan->groups[1].ranks = calloc(ranks, sizeof(*plan->groups[1].ranks));
    for (uint32_t r = 0; r < ranks; r++) {
        plan->groups[1].ranks[r] = r;
        plan->ranks[r].block_end = BLOCKS;
        plan->ranks[r].rows = 1;
    }
    return plan;
}

/* Makes a plan of stages with replicas, each of which keeps all blocks of its stage. */
static void replicas(struct rand_stream *stream, struct stored *stored)
{
    uint32_t ranks = 2 + rand_stream_below(stream, RANKS_MAX - 1);
    int32_t cut = 1 + (int32_t)rand_stream_below(stream, BLOCKS - 1);
    struct plan *plan = plan_make(ranks, PLACE_HYBRID);
    for (uint32_t r = 0; r < ranks; r++) {
        bool first = r == 0 || (r + 1 < ranks && rand_stream_below(stream, 2));
        plan->ranks[r].block_begin = first ? 0 : cut;
        plan->ranks[r].block_end = first ? cut : BLOCKS;
        program_fill(&plan->ranks[r], true, true, PLAN_NONE, false);
    }
    for (uint32_t r = 0; r < ranks; r++)
        for (int32_t b = plan->ranks[r].block_begin; b < plan->ranks[r].block_end; b++) {
            store(stored, plan, r, norm_of(b, true));
            store(stored, plan, r, matrix_of(b));
        }
    plan_destroy(plan);
}

/* Makes a plan of a group that shares out the state, some members with no share. The norm layers' weights
 * are not cut: the first member with a share keeps them whole. */
static void shards(struct rand_stream *stream, struct stored *stored)
{
    uint32_t ranks = 2 + rand_stream_below(stream, RANKS_MAX - 1), sum = 0, weights[RANKS_MAX], first = ranks;
    struct plan *plan = plan_make(ranks, PLACE_DATA);
    plan->groups[1].shares = calloc(ranks, sizeof(*plan->groups[1].shares));
    for (uint32_t r = 0; r < ranks; r++) {
        sum += weights[r] = r + 1 == ranks && sum == 0 ? 1 : rand_stream_below(stream, 4);
        first = weights[r] > 0 && first == ranks ? r : first;
    }
    for (uint32_t r = 0, at = 0; r < ranks; r++) {
        plan->groups[1].shares[r] = (double)weights[r] / sum;
        program_fill(&plan->ranks[r], true, weights[r] > 0, 1, false);
        for (int32_t b = 0; b < BLOCKS; b++) {
            struct shard_piece piece = matrix_of(b);
            piece.first = (uint64_t)piece.count * at / sum;
            piece.count = (uint64_t)piece.count * (at + weights[r]) / sum - piece.first;
            store(stored, plan, r, piece);
            if (r == first)
                store(stored, plan, r, norm_of(b, true));
        }
        at += weights[r];
    }
    plan_destroy(plan);
}

/* Makes a plan of ranks that share out a frozen base. Ranks that compute have the adapters; other ranks have
 * nothing to train. */
static void adapters(struct rand_stream *stream, struct stored *stored)
{
    uint32_t ranks = 2 + rand_stream_below(stream, RANKS_MAX - 1);
    struct plan *plan = plan_make(ranks, PLACE_DATA);
    bool computes[RANKS_MAX];
    for (uint32_t r = 0; r < ranks; r++) {
        computes[r] = r + 1 == ranks || rand_stream_below(stream, 2);
        program_fill(&plan->ranks[r], computes[r], true, PLAN_NONE, false);
    }
    for (uint32_t r = 0; r < ranks; r++)
        for (int32_t b = 0; b < BLOCKS && computes[r]; b++) {
            store(stored, plan, r, norm_of(b, true));
            store(stored, plan, r, matrix_of(b));
        }
    plan_destroy(plan);
}

/* Makes a plan of a server: one rank, at any place, holds all state and computes nothing. */
static void server(struct rand_stream *stream, struct stored *stored)
{
    uint32_t ranks = 2 + rand_stream_below(stream, RANKS_MAX - 1), holder = rand_stream_below(stream, ranks);
    struct plan *plan = plan_make(ranks, PLACE_SERVER);
    for (uint32_t r = 0; r < ranks; r++) {
        plan->ranks[r].slot_count = 1;
        plan->ranks[r].slots = calloc(1, sizeof(*plan->ranks[r].slots));
        plan->ranks[r].slots[0].kind = SLOT_PARAMETERS;
        program_fill(&plan->ranks[r], r != holder, r == holder, PLAN_NONE, r == holder);
    }
    for (int32_t b = 0; b < BLOCKS; b++) {
        store(stored, plan, holder, norm_of(b, true));
        store(stored, plan, holder, matrix_of(b));
    }
    plan_destroy(plan);
}

/* Makes a plan of a tensor group whose members have rows of the matrix and all have the norm. */
static void tensor(struct rand_stream *stream, struct stored *stored)
{
    uint32_t ranks = 2 + rand_stream_below(stream, RANKS_MAX - 1), cuts[RANKS_MAX + 1] = {0};
    struct plan *plan = plan_make(ranks, PLACE_TENSOR);
    for (uint32_t r = 0; r < ranks; r++) { /* each has at least one row */
        uint32_t left = ROWS - cuts[r] - (ranks - r - 1);
        cuts[r + 1] = r + 1 == ranks ? ROWS : cuts[r] + 1 + rand_stream_below(stream, left);
        plan->ranks[r].tensor = (struct plan_tensor){.column_begin = cuts[r], .column_end = cuts[r + 1]};
        program_fill(&plan->ranks[r], true, true, PLAN_NONE, false);
    }
    for (uint32_t r = 0; r < ranks; r++)
        for (int32_t b = 0; b < BLOCKS; b++) {
            struct shard_piece piece = matrix_of(b);
            piece.of.alike = false;
            piece.of.row_begin = cuts[r];
            piece.of.rows = cuts[r + 1] - cuts[r];
            piece.count = (uint64_t)piece.of.rows * COLUMNS;
            store(stored, plan, r, piece);
            store(stored, plan, r, norm_of(b, true));
        }
    plan_destroy(plan);
}

/* Makes a plan of ranks with attention, with experts, or with both; an expert may be on several ranks. */
static void experts(struct rand_stream *stream, struct stored *stored)
{
    uint32_t ranks = 2 + rand_stream_below(stream, RANKS_MAX - 1);
    struct plan *plan = plan_make(ranks, PLACE_EXPERT);
    for (uint32_t r = 0; r < ranks; r++) {
        struct plan_rank *rank = &plan->ranks[r];
        bool last = r + 1 == ranks; /* the last rank has everything, so that nothing is missing */
        rank->rows = last ? 1 : rand_stream_below(stream, 2);
        rank->experts = calloc(BLOCKS, sizeof(*rank->experts));
        for (int32_t b = 0; b < BLOCKS; b++) {
            int32_t begin = last ? 0 : (int32_t)rand_stream_below(stream, EXPERTS + 1),
                    end = last ? EXPERTS
                               : begin + (int32_t)rand_stream_below(stream, (uint32_t)(EXPERTS - begin) + 1);
            if (end > begin)
                rank->experts[rank->expert_count++] = (struct plan_experts){b, begin, end};
        }
        program_fill(rank, true, true, PLAN_NONE, false);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        for (int32_t b = 0; b < BLOCKS && plan->ranks[r].rows > 0; b++) {
            store(stored, plan, r, norm_of(b, true));
            store(stored, plan, r, matrix_of(b));
        }
        for (uint32_t i = 0; i < plan->ranks[r].expert_count; i++)
            for (int32_t e = plan->ranks[r].experts[i].begin; e < plan->ranks[r].experts[i].end; e++) {
                char name[NAME_SIZE];
                struct shard_piece piece = matrix_of(plan->ranks[r].experts[i].block);
                snprintf(name, sizeof(name), "model.layers.N.mlp.experts.%d.up_proj.weight", (int)e);
                piece.of.name = name;
                piece.of.alike = false;
                stored->expert[piece.of.block][e] += piece_is_stored_by(plan, r, &piece);
            }
    }
    plan_destroy(plan);
}

static void every_value_is_stored_once(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*run)(struct rand_stream *stream, struct stored *stored);
    } kinds[] = {{"replicas", replicas}, {"shards", shards}, {"adapters", adapters},
                 {"server", server},     {"tensor", tensor}, {"experts", experts}};
    struct stored *stored = malloc(sizeof(*stored));
    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct rand_stream stream;
            rand_stream_init(&stream, seed, k);
            memset(stored, 0, sizeof(*stored));
            kinds[k].run(&stream, stored);
            expect_once(stored, kinds[k].run == experts, kinds[k].name, seed);
        }
    free(stored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_is_stored_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
