/* Checks expert plans, in which attention and experts may be on different ranks. It proves that every expert
 * of a layer is on one rank; every micro-batch goes from attention to the router, to every rank with experts
 * of the layer, and back, once forward and once backward; each of these instructions reads the slot that the
 * one before wrote; and no rank can be sent more than it has room for.
 *
 * cover.c proves that every row passes attention once, slots.c that slots are written before they are
 * read, graph.c that DISPATCH and COMBINE have one order on all members.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/check/check_private.h"

#define EXPERTS_MAX 4096 /* most experts of a layer */
/* Most entries of a rank's table: layers × micro-batches × PARTS (attention, router, dispatch, experts,
 * combine). */
#define CELLS_MAX ((size_t)1 << 24)

enum expert_part { AT, RO, DI, EX, CO, PARTS };
static const enum instr_op op_of[PARTS] = {INSTR_ATTENTION, INSTR_ROUTE, INSTR_DISPATCH, INSTR_EXPERTS,
                                           INSTR_COMBINE};

struct expert_check {
    const struct plan *plan;
    int kind;
    uint32_t layer_count, micro_batches, experts;
    int32_t *layer;  /* [block_count] index among the layers with experts, or -1 */
    int32_t *block;  /* [layer_count] block of each layer with experts */
    uint16_t *owner; /* [layer_count · experts] 1 + the rank that holds the expert; 0: none */
    bool *holds;     /* [rank_count · layer_count] true if the rank has experts of the layer */
    bool *attends;   /* [rank_count] true if the rank has attention in this program */
    uint32_t *cells; /* [layer_count · micro_batches · PARTS · 2] of the rank that is being checked: 1 +
                        the instruction; 0: none */
    /* [rank_count · 2] most bytes that a rank sends towards experts and back; least room that a rank has for
     * them */
    uint64_t *sends, *takes;
    struct err *err;
};

static int expert_part_of(const struct instr *x)
{
    for (int p = 0; p < PARTS; p++)
        if (x->op == op_of[p])
            return p;
    return -1;
}

bool check_has_experts(const struct plan *plan)
{
    if (plan->placement == PLACE_EXPERT)
        return true;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (plan->ranks[r].expert_count)
            return true;
        for (int kind = 0; kind < PROGRAM_KINDS; kind++) {
            const struct program *program = &plan->ranks[r].programs[kind];
            for (uint32_t i = 0; i < program->instr_count; i++)
                if (expert_part_of(&program->instrs[i]) >= 0)
                    return true;
        }
    }
    return false;
}

/* --- assignment of experts --- */

static int expert_ranges_read(struct expert_check *s)
{
    const struct plan *plan = s->plan;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        for (uint32_t i = 0; i < plan->ranks[r].expert_count; i++) {
            const struct plan_experts *e = &plan->ranks[r].experts[i];
            if (e->block < 1 || e->block >= plan->block_count - 1 || e->begin < 0 || e->begin >= e->end ||
                e->end > EXPERTS_MAX)
                return err_set(s->err, ERR_INVALID, "rank %u: experts %d..%d of block %d are out of range", r,
                               e->begin, e->end, e->block);
            s->layer[e->block] = 0;
            s->experts = (uint32_t)e->end > s->experts ? (uint32_t)e->end : s->experts;
        }
    }
    for (int32_t b = 0; b < plan->block_count; b++) {
        if (s->layer[b] == 0) {
            s->layer[b] = (int32_t)s->layer_count;
            s->block[s->layer_count++] = b;
        }
    }
    return s->layer_count ? 0
                          : err_set(s->err, ERR_INVALID,
                                    "plan: attention and experts are apart, but no rank holds experts");
}

static int owners_fill(struct expert_check *s)
{
    const struct plan *plan = s->plan;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        for (uint32_t i = 0; i < plan->ranks[r].expert_count; i++) {
            const struct plan_experts *e = &plan->ranks[r].experts[i];
            uint32_t layer = (uint32_t)s->layer[e->block];
            s->holds[(size_t)r * s->layer_count + layer] = true;
            for (int32_t x = e->begin; x < e->end; x++) {
                uint16_t *owner = &s->owner[(size_t)layer * s->experts + (uint32_t)x];
                if (*owner)
                    return err_set(s->err, ERR_INVALID,
                                   "expert %d of block %d is held by rank %u and by rank %u", x, e->block,
                                   *owner - 1u, r);
                *owner = (uint16_t)(r + 1);
            }
        }
    }
    for (uint32_t l = 0; l < s->layer_count; l++) {
        for (uint32_t x = 0; x < s->experts; x++)
            if (!s->owner[(size_t)l * s->experts + x])
                return err_set(s->err, ERR_INVALID, "expert %u of block %d is held by no rank", x,
                               s->block[l]);
    }
    return 0;
}

static void state_fini(struct expert_check *s)
{
    free(s->layer);
    free(s->block);
    free(s->owner);
    free(s->holds);
    free(s->attends);
    free(s->cells);
    free(s->sends);
    free(s->takes);
}

static int expert_state_init(struct expert_check *s)
{
    const struct plan *plan = s->plan;
    size_t blocks = (size_t)plan->block_count + 1, ranks = (size_t)plan->rank_count + 1;
    s->layer = calloc(blocks, sizeof(*s->layer));
    s->block = calloc(blocks, sizeof(*s->block));
    if (!s->layer || !s->block)
        return err_set(s->err, ERR_NOMEM, "plan: out of memory while checking experts");
    memset(s->layer, 0xff, blocks * sizeof(*s->layer));
    if (expert_ranges_read(s) < 0)
        return -1;
    bool one = s->kind == PROGRAM_PREFILL || s->kind == PROGRAM_GENERATE;
    s->micro_batches = one ? 1 : plan->micro_batch_count;
    size_t cells = (size_t)s->layer_count * s->micro_batches;
    if (cells > CELLS_MAX / PARTS / 2)
        return err_set(s->err, ERR_TOO_BIG,
                       "plan: %u layers with experts and %u micro-batches are too many to check",
                       s->layer_count, s->micro_batches);
    s->owner = calloc((size_t)s->layer_count * s->experts + 1, sizeof(*s->owner));
    s->holds = calloc(ranks * s->layer_count, sizeof(*s->holds));
    s->attends = calloc(ranks, sizeof(*s->attends));
    s->cells = calloc(cells * PARTS * 2 + 1, sizeof(*s->cells));
    s->sends = calloc(ranks * 2, sizeof(*s->sends));
    s->takes = calloc(ranks * 2, sizeof(*s->takes));
    if (!s->owner || !s->holds || !s->attends || !s->cells || !s->sends || !s->takes)
        return err_set(s->err, ERR_NOMEM, "plan: out of memory while checking experts");
    return owners_fill(s);
}

/* --- the parts of each layer and micro-batch --- */

static uint32_t *cell(const struct expert_check *s, uint32_t layer, uint32_t micro, int part, bool back)
{
    return &s->cells[(((size_t)layer * s->micro_batches + micro) * PARTS + (size_t)part) * 2 + back];
}

static int expert_refuse(const struct expert_check *s, uint32_t rank, uint32_t instr, const char *what)
{
    char where[200];
    return err_set(s->err, ERR_INVALID, "%s %s", plan_where(s->plan, rank, s->kind, instr, where), what);
}

static int cells_read(struct expert_check *s, uint32_t rank)
{
    const struct program *program = &s->plan->ranks[rank].programs[s->kind];
    char other[200], where[200];
    memset(s->cells, 0, (size_t)s->layer_count * s->micro_batches * PARTS * 2 * sizeof(*s->cells));
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        int part = expert_part_of(x);
        if (part < 0)
            continue;
        bool back = x->flags & FLAG_BACKWARD;
        if (x->block_end != x->block_begin + 1 || s->layer[x->block_begin] < 0 || x->micro_batch < 0 ||
            (uint32_t)x->micro_batch >= s->micro_batches)
            return expert_refuse(s, rank, i, "is not of one micro-batch and one layer with experts");
        if (back && s->kind != PROGRAM_TRAIN)
            return expert_refuse(s, rank, i, "goes backward in a program that has no backward");
        if (part == AT && s->plan->ranks[rank].rows == 0 && s->plan->ranks[rank].block_begin > 0)
            return expert_refuse(s, rank, i, "is on a rank that holds experts alone");
        uint32_t *at = cell(s, (uint32_t)s->layer[x->block_begin], (uint32_t)x->micro_batch, part, back);
        if (*at)
            return err_set(s->err, ERR_INVALID, "%s repeats what %s does",
                           plan_where(s->plan, rank, s->kind, i, where),
                           plan_where(s->plan, rank, s->kind, *at - 1, other));
        *at = i + 1;
    }
    return 0;
}

static const char *const part_names[PARTS] = {"ATTENTION", "ROUTE", "DISPATCH", "EXPERTS", "COMBINE"};

/* Checks that the rank has all instructions of a layer and micro-batch for one direction (forward or
 * backward). */
static int parts_there(const struct expert_check *s, uint32_t rank, uint32_t layer, uint32_t micro, bool back,
                       const int *parts, int count)
{
    int missing = -1;
    uint32_t near = 0;
    char where[200];
    for (int i = 0; i < count; i++) {
        uint32_t at = *cell(s, layer, micro, parts[i], back);
        missing = at || missing >= 0 ? missing : parts[i];
        near = at ? at : near;
    }
    if (missing < 0)
        return 0;
    if (!near)
        return err_set(
            s->err, ERR_INVALID,
            "rank %u %s has no instruction %s for micro-batch %u in block %d%s, of which it holds experts",
            rank, program_kind_name(s->kind), part_names[missing], micro, s->block[layer],
            back ? " backward" : "");
    return err_set(s->err, ERR_INVALID, "%s has no %s beside it: micro-batch %u does not pass block %d%s",
                   plan_where(s->plan, rank, s->kind, near - 1, where), part_names[missing], micro,
                   s->block[layer], back ? " backward" : "");
}

enum slot_field { IN, OUT, SAVE };

static int32_t expert_slot_at(const struct expert_check *s, uint32_t rank, uint32_t instr,
                              enum slot_field field)
{
    const struct instr *x = &s->plan->ranks[rank].programs[s->kind].instrs[instr];
    return field == IN ? x->slot_in : field == OUT ? x->slot_out : x->slot_save;
}

struct link { /* the output slot of one instruction is the input slot of another */
    int from;
    bool from_back;
    enum slot_field left;
    int to;
    bool to_back;
    enum slot_field taken;
};

static const struct link attention_forward[] = {
    {AT, false, OUT, RO, false, IN}, {RO, false, OUT, DI, false, IN}, {AT, false, OUT, CO, false, SAVE}};
static const struct link attention_backward[] = {{DI, true, OUT, RO, true, IN},
                                                 {CO, true, IN, RO, true, OUT},
                                                 {RO, true, OUT, AT, true, IN},
                                                 {AT, false, SAVE, AT, true, SAVE},
                                                 {RO, false, SAVE, RO, true, SAVE}};
static const struct link experts_forward[] = {{DI, false, OUT, EX, false, IN},
                                              {EX, false, OUT, CO, false, IN}};
static const struct link experts_backward[] = {
    {CO, true, OUT, EX, true, IN}, {EX, true, OUT, DI, true, IN}, {EX, false, SAVE, EX, true, SAVE}};

static int expert_links_hold(const struct expert_check *s, uint32_t rank, uint32_t layer, uint32_t micro,
                             const struct link *links, size_t count)
{
    char one[200], two[200];
    for (size_t i = 0; i < count; i++) {
        uint32_t a = *cell(s, layer, micro, links[i].from, links[i].from_back) - 1;
        uint32_t b = *cell(s, layer, micro, links[i].to, links[i].to_back) - 1;
        int32_t left = expert_slot_at(s, rank, a, links[i].left),
                taken = expert_slot_at(s, rank, b, links[i].taken);
        if (left < 0 || left != taken)
            return err_set(s->err, ERR_INVALID, "%s does not take up, in slot %d, what %s leaves in slot %d",
                           plan_where(s->plan, rank, s->kind, b, one), taken,
                           plan_where(s->plan, rank, s->kind, a, two), left);
    }
    return 0;
}

/* Checks that attention and router, forward and backward, have the same rows. */
static int rows_agree(const struct expert_check *s, uint32_t rank, uint32_t layer, uint32_t micro)
{
    const struct instr *instrs = s->plan->ranks[rank].programs[s->kind].instrs;
    uint32_t first = *cell(s, layer, micro, AT, false) - 1;
    char one[200], two[200];
    for (int i = 1; i < 4; i++) {
        uint32_t at = *cell(s, layer, micro, i & 1 ? RO : AT, i > 1);
        if (at && (instrs[at - 1].row_begin != instrs[first].row_begin ||
                   instrs[at - 1].row_end != instrs[first].row_end))
            return err_set(s->err, ERR_INVALID, "%s is not of the rows that %s is of",
                           plan_where(s->plan, rank, s->kind, at - 1, one),
                           plan_where(s->plan, rank, s->kind, first, two));
    }
    return 0;
}

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static int cell_check(const struct expert_check *s, uint32_t rank, uint32_t layer, uint32_t micro)
{
    static const int attention[] = {AT, RO, DI, CO}, experts[] = {DI, EX, CO};
    bool train = s->kind == PROGRAM_TRAIN, holds = s->holds[(size_t)rank * s->layer_count + layer];
    bool attends =
        s->attends[rank] && (*cell(s, layer, micro, AT, false) || *cell(s, layer, micro, RO, false));
    if (attends &&
        (parts_there(s, rank, layer, micro, false, attention, 4) < 0 ||
         expert_links_hold(s, rank, layer, micro, attention_forward, COUNT(attention_forward)) < 0))
        return -1;
    if (attends && train &&
        (parts_there(s, rank, layer, micro, true, attention, 4) < 0 ||
         expert_links_hold(s, rank, layer, micro, attention_backward, COUNT(attention_backward)) < 0))
        return -1;
    if (attends && rows_agree(s, rank, layer, micro) < 0)
        return -1;
    uint32_t routes = *cell(s, layer, micro, RO, true);
    if (attends && train &&
        !(s->plan->ranks[rank].programs[s->kind].instrs[routes - 1].flags & FLAG_ACCUMULATE))
        return expert_refuse(s, rank, routes - 1,
                             "replaces the gradient that passes by it instead of adding to it");
    holds |= *cell(s, layer, micro, EX, false) || *cell(s, layer, micro, EX, true);
    if (holds && (parts_there(s, rank, layer, micro, false, experts, 3) < 0 ||
                  expert_links_hold(s, rank, layer, micro, experts_forward, COUNT(experts_forward)) < 0))
        return -1;
    if (holds && train &&
        (parts_there(s, rank, layer, micro, true, experts, 3) < 0 ||
         expert_links_hold(s, rank, layer, micro, experts_backward, COUNT(experts_backward)) < 0))
        return -1;
    return 0;
}

/* --- groups and room --- */

/* Checks that DISPATCH and COMBINE reach all ranks with experts of the layer and all with attention. */
static int groups_reach(const struct expert_check *s, uint32_t rank)
{
    const struct program *program = &s->plan->ranks[rank].programs[s->kind];
    int32_t group = -1, block = -1;
    char where[200];
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        int part = expert_part_of(x);
        if ((part != DI && part != CO) || s->plan->groups[x->group].ranks[0] != rank ||
            (x->group == group && x->block_begin == block))
            continue;
        group = x->group;
        block = x->block_begin;
        for (uint32_t r = 0; r < s->plan->rank_count; r++) {
            bool holds = s->holds[(size_t)r * s->layer_count + (uint32_t)s->layer[block]];
            if ((holds || s->attends[r]) && plan_group_position(&s->plan->groups[group], r) < 0)
                return err_set(s->err, ERR_INVALID, "%s leaves out rank %u, which %s of block %d",
                               plan_where(s->plan, rank, s->kind, i, where), r,
                               holds ? "holds experts" : "has the attention", block);
        }
    }
    return 0;
}

/* Reads the sizes of the slots for routed tokens. A token is sent to a rank at most once, so a slot that has
 * room for all tokens is large enough. */
static int room_read(struct expert_check *s, uint32_t rank)
{
    const struct plan_rank *r = &s->plan->ranks[rank];
    const struct program *program = &r->programs[s->kind];
    for (uint32_t i = 0; i < program->instr_count; i++) {
        const struct instr *x = &program->instrs[i];
        if (expert_part_of(x) != DI || (x->flags & FLAG_BACKWARD))
            continue;
        if (x->slot_in < 0 && x->slot_out < 0)
            return expert_refuse(s, rank, i, "moves nothing");
        for (int side = 0; side < 2; side++) {
            int32_t slot = side ? x->slot_out : x->slot_in;
            if (slot < 0)
                continue;
            if (r->slots[slot].kind != SLOT_ROUTED)
                return expert_refuse(s, rank, i, "is not between slots for routed tokens");
            uint64_t bound = r->slots[slot].bytes_bound;
            uint64_t *most = &s->sends[rank], *least = &s->takes[rank];
            if (side == 0 && bound > *most)
                *most = bound;
            if (side == 1 && (*least == 0 || bound < *least))
                *least = bound;
        }
    }
    return 0;
}

static int room_check(const struct expert_check *s)
{
    uint64_t sent = 0;
    for (uint32_t r = 0; r < s->plan->rank_count; r++)
        sent += s->sends[r];
    for (uint32_t r = 0; r < s->plan->rank_count; r++) {
        const struct program *program = &s->plan->ranks[r].programs[s->kind];
        uint32_t i = 0;
        if (s->takes[r] == 0 || s->takes[r] >= sent)
            continue;
        while (i + 1 < program->instr_count &&
               !(expert_part_of(&program->instrs[i]) == DI && program->instrs[i].slot_out >= 0))
            i++;
        char where[200];
        return err_set(s->err, ERR_INVALID,
                       "%s has room for %llu bytes of routed tokens, but may be sent %llu",
                       plan_where(s->plan, r, s->kind, i, where), (unsigned long long)s->takes[r],
                       (unsigned long long)sent);
    }
    return 0;
}

int check_experts(const struct plan *plan, int kind, struct err *err)
{
    struct expert_check s = {.plan = plan, .kind = kind, .err = err};
    uint64_t total = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        total += plan->ranks[r].programs[kind].instr_count;
    if (kind == PROGRAM_SAVE || total == 0 || !check_has_experts(plan))
        return 0;
    int result = expert_state_init(&s);
    for (uint32_t r = 0; r < plan->rank_count && result == 0; r++) {
        const struct program *program = &plan->ranks[r].programs[kind];
        for (uint32_t i = 0; i < program->instr_count && !s.attends[r]; i++)
            s.attends[r] = program->instrs[i].op == INSTR_ATTENTION;
    }
    for (uint32_t r = 0; r < plan->rank_count && result == 0; r++) {
        result = cells_read(&s, r);
        for (uint32_t l = 0; l < s.layer_count && result == 0; l++)
            for (uint32_t k = 0; k < s.micro_batches && result == 0; k++)
                result = cell_check(&s, r, l, k);
        if (result == 0)
            result = groups_reach(&s, r);
        if (result == 0)
            result = room_read(&s, r);
    }
    if (result == 0)
        result = room_check(&s);
    state_fini(&s);
    return result;
}

/* --- gradients --- */

static bool sums_gradients(const struct instr *x)
{
    return x->tag == TAG_PARAMETER_GRADIENTS &&
           (x->op == INSTR_ALL_REDUCE || x->op == INSTR_REDUCE_SCATTER || x->op == INSTR_PUSH);
}

/* Checks that no backward adds to gradients of attention's parameters after their all-reduce may have
 * started. */
static int sum_waits(const struct plan *plan, uint32_t rank, uint32_t sum, struct err *err)
{
    const struct program *program = &plan->ranks[rank].programs[PROGRAM_TRAIN];
    struct check_order order;
    char one[200], two[200];
    int result = 0;
    if (check_order_init(&order, plan, rank, PROGRAM_TRAIN, err) < 0)
        return -1;
    for (uint32_t i = 0; i < program->instr_count && result == 0; i++) {
        const struct instr *x = &program->instrs[i];
        bool adds = x->op == INSTR_BACKWARD || x->op == INSTR_BACKWARD_WEIGHT ||
                    ((x->op == INSTR_ATTENTION || x->op == INSTR_ROUTE) && (x->flags & FLAG_BACKWARD));
        if (adds && !check_order_before(&order, i, sum))
            result = err_set(err, ERR_INVALID, "%s does not wait for %s: the sum would be incomplete",
                             plan_where(plan, rank, PROGRAM_TRAIN, sum, one),
                             plan_where(plan, rank, PROGRAM_TRAIN, i, two));
    }
    check_order_fini(&order);
    return result;
}

/* Checks that gradients of attention's parameters are all-reduced once over exactly the ranks with attention,
 * and those of experts never, since each expert is on one rank. All ranks sum the clip norm: each adds its
 * experts' part, and the group's first rank adds attention's. */
int check_expert_reductions(const struct plan *plan, struct err *err)
{
    char where[200];
    uint32_t attending = 0, first = UINT32_MAX;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        bool attends = plan->ranks[r].rows > 0;
        attending += attends;
        first = attends && first == UINT32_MAX ? r : first;
    }
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *program = &plan->ranks[r].programs[PROGRAM_TRAIN];
        uint32_t sums = 0, wanted = plan->ranks[r].rows > 0 && attending > 1, last = 0;
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *x = &program->instrs[i];
            if (x->op == INSTR_ALL_REDUCE && x->tag == TAG_NORM &&
                plan->groups[x->group].rank_count != plan->rank_count)
                return err_set(err, ERR_INVALID, "%s leaves out ranks whose experts have gradients",
                               plan_where(plan, r, PROGRAM_TRAIN, i, where));
            if (!sums_gradients(x))
                continue;
            sums++;
            last = i;
            const struct plan_group *group = x->group >= 0 ? &plan->groups[x->group] : NULL;
            if (x->op != INSTR_ALL_REDUCE || !group || group->rank_count != attending)
                return err_set(err, ERR_INVALID,
                               "%s does not sum attention's gradients over the %u ranks that have them",
                               plan_where(plan, r, PROGRAM_TRAIN, i, where), attending);
            for (uint32_t p = 0; p < group->rank_count; p++)
                if (plan->ranks[group->ranks[p]].rows == 0)
                    return err_set(err, ERR_INVALID, "%s: rank %u has no attention and is in the group",
                                   plan_where(plan, r, PROGRAM_TRAIN, i, where), group->ranks[p]);
        }
        if (sums == wanted) {
            if (sums && sum_waits(plan, r, last, err) < 0)
                return -1;
            continue;
        }
        if (sums)
            return err_set(err, ERR_INVALID, "%s: the gradients of attention are reduced %s",
                           plan_where(plan, r, PROGRAM_TRAIN, last, where),
                           wanted ? "more than once" : "although only one rank has them");
        return err_set(err, ERR_INVALID,
                       "%s: the gradients of attention, which %u ranks take, are never reduced before it",
                       plan_where_end(plan, r, PROGRAM_TRAIN, false, where), attending);
    }
    return 0;
}
