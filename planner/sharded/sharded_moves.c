/* Changing layered choices: rows from one member to another, how they are cut, how much is gathered, who
 * takes part; then the shards by the room that is left. */
#include "planner/cost/ring.h"
#include "planner/sharded/sharded_moves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/search/plain_moves.h"
#include "planner/sharded/sharded.h"

#define LAYERS_ALL 9u       /* layers up to which every number of gathered ones is tried */
#define ROUNDING_BYTES 4096 /* a member's needs are rounded up to granules */
#define LIKE 1e-6           /* shares that near are of the same aim */
#define SHARE_GIFTS 3u      /* sizes of what a member gives another of its shard */
#define AIMS_DEVICES 8u     /* members up to which shares between the two aims are tried */

static bool server(const struct place_choice *c)
{
    return c->placement == PLACE_SERVER;
}

uint32_t sharded_program_length(const struct problem *p, const struct place_choice *c)
{
    bool layers = c->gathered_layers > 0 && !(server(c) && p->workload->method == METHOD_LORA);
    return layers ? 1 + (uint32_t)p->block_count / 2 : 1;
}

static uint32_t ring_of(const struct problem *p)
{
    return (uint32_t)p->block_count - 1 - !p->blocks.tied;
}

/* How many numbers of gathered layers are tried: all, or of many layers three. */
static uint32_t layer_choices(const struct problem *p)
{
    uint32_t ring = ring_of(p);
    return ring > LAYERS_ALL ? 3 : ring > 2 ? ring - 1 : 1;
}

static uint32_t layers_of(const struct problem *p, uint32_t number)
{
    uint32_t ring = ring_of(p);
    const uint32_t layers[3] = {2, ring / 2, ring};
    uint32_t wanted = ring > LAYERS_ALL ? layers[number] : 2 + number;
    return wanted < ring ? wanted : ring;
}

/* What is gathered comes in, what is reduced goes out; of LoRA nothing is reduced. Aims beyond enum
 * share_aim: for the links that things come in by, or go out by, alone. */
enum { AIM_FOR_INWARD = SHARE_AIMS, AIM_FOR_OUTWARD, AIMS };

static int members_fill(const struct problem *p, const struct place_choice *c, uint32_t aim,
                        struct share_member *members, struct err *err)
{
    struct sharded_buffers buffers = sharded_buffers(p, c->gathered_layers);
    double state = sharded_state_bytes(p), latency,
           *rates = calloc(2 * (size_t)c->member_count + 2, sizeof(*rates));
    uint32_t *device = calloc((size_t)c->member_count + 1, sizeof(*device));
    bool inward = p->workload->method == METHOD_LORA || aim == AIM_FOR_INWARD;
    for (uint32_t m = 0; m < c->member_count && rates && device; m++) {
        const struct place_member *x = &c->members[m];
        struct memory_need need;
        sharded_need(p, &buffers, x->micro_rows, x->micro_count, x->recompute, 0, &need);
        double room = (double)p->cluster->devices[x->device].memory_limit_bytes - (double)need.total;
        members[m] = (struct share_member){.room = (room - ROUNDING_BYTES) / state,
                                           .step_s = problem_step_seconds(p, x->device, 0, p->block_count)};
        device[m] = x->device;
    }
    if (rates && device)
        ring_rates(p->cluster, device, c->member_count, rates, rates + c->member_count, &latency);
    for (uint32_t m = 0; m < c->member_count && rates && device; m++) {
        double in = rates[m], out = rates[c->member_count + m];
        members[m].bytes_per_s = inward ? in : aim == AIM_FOR_OUTWARD ? out : fmin(in, out);
    }
    int result = rates && device ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    free(rates);
    free(device);
    return result;
}

/* Shares by the room there is: returns 1, 0 when it does not hold the state, −1 ERR_NOMEM. */
static int shares_fill(const struct problem *p, struct place_choice *c, uint32_t aim, struct err *err)
{
    struct share_member *members = calloc((size_t)c->member_count + 1, sizeof(*members));
    double *shares = calloc((size_t)c->member_count + 1, sizeof(*shares));
    int result = members && shares ? 1 : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result > 0)
        result = members_fill(p, c, aim, members, err) < 0 ? -1 : 1;
    if (result > 0)
        result = share_state(members, c->member_count,
                             aim < SHARE_AIMS ? (enum share_aim)aim : SHARE_FOR_LINKS, shares);
    for (uint32_t m = 0; m < c->member_count && result > 0; m++)
        c->members[m].state_share = shares[m];
    c->share_aim = aim + 1;
    free(members);
    free(shares);
    return result;
}

static uint32_t aims_of(const struct place_choice *c)
{
    return c->member_count <= AIMS_DEVICES ? AIMS : SHARE_FOR_STEP + 1;
}

/* Which aim the shares were chosen for. */
static uint32_t aim_of(const struct problem *p, const struct place_choice *c)
{
    struct place_choice copy;
    struct err err;
    uint32_t found = SHARE_FOR_LINKS;
    if (c->share_aim)
        return c->share_aim - 1;
    if (choice_copy(&copy, c, &err) < 0)
        return found;
    for (uint32_t aim = aims_of(c); aim-- > 1 && found == SHARE_FOR_LINKS;) {
        bool like = shares_fill(p, &copy, aim, &err) > 0;
        for (uint32_t m = 0; m < c->member_count && like; m++)
            like = fabs(copy.members[m].state_share - c->members[m].state_share) < LIKE;
        found = like ? aim : found;
    }
    choice_fini(&copy);
    return found;
}

/* A part of the state from one member to another, whatever the aim; no more than its room is for the memory
 * model to say. */
static int share_give(struct place_choice *c, uint32_t from, uint32_t to, uint32_t part)
{
    static const double parts[SHARE_GIFTS] = {1.0 / 32, 1.0 / 256, 1.0 / 2048};
    if (from == to || c->gathered_layers == 0 || c->members[from].state_share <= parts[part])
        return 0;
    c->members[from].state_share -= parts[part];
    c->members[to].state_share += parts[part];
    return 1;
}

static double rows_seconds(const struct problem *p, uint32_t device, uint32_t rows)
{
    struct cost_load load = p->mean_row;
    struct micro_cost cost;
    load.rows *= rows;
    load.tokens *= rows;
    load.sum_sq *= rows;
    load.labelled *= rows;
    micro_cost_load(&cost, p, device, &load);
    return micro_forward(p, &cost, 0, p->block_count) + micro_backward(p, &cost, 0, p->block_count, false);
}

/* Cuts a member's rows anew: as before if that divides them, else the way that computes fastest. */
static void rows_set(const struct problem *p, struct place_member *x, uint32_t total)
{
    uint32_t best = 1;
    double least = INFINITY;
    for (uint32_t rows = 1; rows <= total; rows++) {
        if (total % rows)
            continue;
        double seconds = rows == x->micro_rows ? 0 : total / rows * rows_seconds(p, x->device, rows);
        if (seconds < least) {
            least = seconds;
            best = rows;
        }
    }
    x->micro_rows = total ? best : 1;
    x->micro_count = total / x->micro_rows;
    x->window = x->micro_count ? x->micro_count : 1;
}

static bool may_idle(const struct problem *p, const struct place_choice *c, uint32_t member)
{
    return server(c) ? member == 0 : p->workload->method == METHOD_FULL;
}

static int rows_move(const struct problem *p, struct place_choice *c, uint32_t from, uint32_t to)
{
    struct place_member *a = &c->members[from], *b = &c->members[to / 2];
    uint32_t held = a->micro_rows * a->micro_count, other = b->micro_rows * b->micro_count;
    uint32_t moved = to % 2 ? a->micro_rows : 1;
    if (a == b || held < moved || (held == moved && !may_idle(p, c, from)) || p->workload->micro_batch_rows)
        return 0;
    rows_set(p, a, held - moved);
    rows_set(p, b, other + moved);
    return 1;
}

static int micro_move(const struct problem *p, struct place_choice *c, uint32_t rows, uint32_t member)
{
    struct place_member *x = &c->members[member];
    uint32_t total = x->micro_rows * x->micro_count;
    if (rows == 0 || total == 0 || total % rows || rows == x->micro_rows || p->workload->micro_batch_rows)
        return 0;
    x->micro_rows = rows;
    x->micro_count = total / rows;
    x->window = x->micro_count;
    return 1;
}

static int drop_move(const struct problem *p, struct place_choice *c, uint32_t member, uint32_t to)
{
    uint32_t rows = c->members[member].micro_rows * c->members[member].micro_count;
    struct place_member *x = &c->members[to];
    if (member == to || c->member_count < 3)
        return 0;
    rows_set(p, x, x->micro_rows * x->micro_count + rows);
    if (server(c) && member == 0) { /* who gets its rows holds what it held */
        c->members[0] = *x;
        member = to;
    }
    memmove(&c->members[member], &c->members[member + 1],
            (c->member_count - member - 1) * sizeof(*c->members));
    c->stages[0].member_count = --c->member_count;
    return 1;
}

/* A device that is not used takes half of a member's rows. Of a server, member member_count: it holds in
 * place of the holder, who goes on with its rows. */
static int add_move(const struct problem *p, struct place_choice *c, uint32_t device, uint32_t member,
                    struct err *err)
{
    bool holds = member >= c->member_count;
    uint32_t at = holds ? member - c->member_count : 0;
    struct place_member *grown, *x = &c->members[holds ? at : member];
    uint32_t rows = x->micro_rows * x->micro_count, least = !holds ? 2 : server(c);
    if (!p->usable[device] || choice_uses(c, device) || rows < least || p->workload->micro_batch_rows)
        return 0;
    grown = realloc(c->members, ((size_t)c->member_count + 1) * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    c->members = grown;
    if (holds) {
        memmove(&grown[at + 1], &grown[at], (c->member_count - at) * sizeof(*grown));
        grown[at].device = device;
        rows_set(p, &grown[at], 0);
    } else {
        x = &grown[member];
        grown[c->member_count] = *x;
        grown[c->member_count].device = device;
        grown[c->member_count].state_share = 0;
        rows_set(p, &grown[c->member_count], rows / 2);
        rows_set(p, x, rows - rows / 2);
    }
    c->stages[0].member_count = ++c->member_count;
    return 1;
}

/* Two members change places with all that is theirs: other rows, and another ring. */
static int order_move(struct place_choice *c, uint32_t a, uint32_t b)
{
    struct place_member member = c->members[a];
    if (a >= b || (server(c) && a == 0))
        return 0;
    c->members[a] = c->members[b];
    c->members[b] = member;
    return 1;
}

void sharded_move_range(const struct problem *p, const struct place_choice *c, enum move_kind kind,
                        uint32_t *a_count, uint32_t *b_count)
{
    uint32_t members = c->member_count;
    bool full = p->workload->method == METHOD_FULL;
    const uint32_t ranges[MOVE_KINDS][2] = {
        [MOVE_WINDOW] = {full        ? layer_choices(p)
                         : server(c) ? 0
                                     : 1 + layer_choices(p),
                         server(c) || !full ? 1 : aims_of(c)},
        [MOVE_RECOMPUTE] = {members + 1, 2},
        [MOVE_DELAY] = {full && !server(c) && members <= AIMS_DEVICES ? members : 0, SHARE_GIFTS * members},
        [MOVE_ROWS] = {members, 2 * members},
        [MOVE_ORDER] = {members, members},
        [MOVE_SWAP] = {members, members},
        [MOVE_REPLACE] = {members, p->device_count},
        [MOVE_DROP] = {members, members},
        [MOVE_ADD] = {p->device_count, members + (server(c) ? 1
                                                  : full    ? members
                                                            : 0)},
        [MOVE_MICRO] = {p->workload->batch_rows + 1, members},
    };
    *a_count = ranges[kind][0];
    *b_count = ranges[kind][1];
}

static int apply(const struct problem *p, struct place_choice *c, enum move_kind kind, uint32_t a, uint32_t b,
                 struct err *err)
{
    switch (kind) {
    case MOVE_WINDOW: /* and the aim, which the caller follows; LoRA: everybody keeps the whole base, or as
                         many */
        if (p->workload->method == METHOD_LORA)
            c->gathered_layers = a ? layers_of(p, a - 1) : 0;
        else
            c->gathered_layers = layers_of(p, a);
        return 1;
    case MOVE_RECOMPUTE:
        return plain_recompute(p, c, a, b);
    case MOVE_ROWS:
        return rows_move(p, c, a, b);
    case MOVE_ORDER:
        return order_move(c, a, b);
    case MOVE_SWAP:
        return plain_swap(c, a, b);
    case MOVE_REPLACE:
        return plain_replace(p, c, a, b);
    case MOVE_DROP:
        return drop_move(p, c, a, b);
    case MOVE_ADD:
        return add_move(p, c, a, b, err);
    case MOVE_MICRO:
        return micro_move(p, c, a, b);
    default:
        return 0;
    }
}

int sharded_move_apply(const struct problem *p, struct place_choice *c, enum move_kind kind, uint32_t a,
                       uint32_t b, struct err *err)
{
    if (kind == MOVE_DELAY)
        return share_give(c, a, b / SHARE_GIFTS, b % SHARE_GIFTS);
    uint32_t aim = kind == MOVE_WINDOW ? b : server(c) ? SHARE_FOR_LINKS : aim_of(p, c);
    int result = apply(p, c, kind, a, b, err);
    if (result <= 0)
        return result;
    c->micro_batch_rows = 1;
    for (uint32_t m = 0; m < c->member_count; m++) {
        const struct place_member *x = &c->members[m];
        if (x->micro_count && x->micro_rows > c->micro_batch_rows)
            c->micro_batch_rows = x->micro_rows;
        c->members[m].state_share = server(c) ? m == 0 : c->gathered_layers ? x->state_share : 1;
        c->members[m].window = c->gathered_layers ? x->window : 1;
    }
    if (c->gathered_layers == 0)
        return 1;
    return server(c) ? 1 : shares_fill(p, c, aim, err);
}
