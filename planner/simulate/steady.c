/* Finding turns, taking most of them out, and telling whether what is left has a period. */
#include "planner/simulate/steady.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TURNS_UNIT 24u     /* turns are taken out in multiples of it at first: most periods divide it */
#define PERIOD_MAX 512u    /* turns */
#define TURNS_KEPT 64u     /* at first, beside the spread between ranks */
#define TURN_MICRO_MAX 64u /* micro-batches of a turn */
#define WORTH 2u           /* of the turns, this many times more must go than stay */
#define ROUNDING 1e-12     /* of the time simulated: ends this near are equal */

struct stretch {     /* of one rank */
    uint32_t period; /* instructions a turn */
    uint32_t begin;  /* first instruction */
    uint32_t turns;  /* whole ones */
    uint32_t kept;   /* of them in the shortened program */
};

struct steady {
    const struct plan *plan;
    int kind;
    const uint32_t *micro_class; /* borrowed until steady_create ends */
    uint32_t cls, micro;         /* the stretch's class; micro-batches a turn */
    struct stretch *stretches;   /* [rank_count] */
    uint32_t turns_min, spread;  /* of the ranks' turns */
    struct plan shorter;         /* programs of its own, the rest borrowed */
    struct sim *sim;
    uint32_t removed; /* turns */
};

/* Is instruction j of the rank instruction i, `micro` micro-batches later? */
static bool again(const struct steady *s, const struct program *p, uint32_t i, uint32_t j, int32_t micro)
{
    const struct instr *a = &p->instrs[i], *b = &p->instrs[j];
    if (a->op != b->op || a->queue != b->queue || a->flags != b->flags || a->tag != b->tag ||
        a->block_begin != b->block_begin || a->block_end != b->block_end || a->peer != b->peer ||
        a->group != b->group || a->slot_in != b->slot_in || a->slot_out != b->slot_out ||
        a->slot_save != b->slot_save || a->row_begin != b->row_begin || a->row_end != b->row_end ||
        a->chunk != b->chunk || a->after_count != b->after_count || a->micro_batch < 0 ||
        b->micro_batch - a->micro_batch != micro || s->micro_class[a->micro_batch] != s->cls ||
        s->micro_class[b->micro_batch] != s->cls)
        return false;
    for (uint32_t k = 0; k < a->after_count; k++) {
        if (p->after[b->after_first + k] - p->after[a->after_first + k] != j - i)
            return false;
    }
    return true;
}

/* The shortest turn around the middle of the list; 0: there is none. */
static uint32_t period_find(const struct steady *s, const struct program *p, uint32_t *micro)
{
    uint32_t middle = p->instr_count / 2;
    for (uint32_t q = 1; q <= p->instr_count / 8; q++) {
        int32_t step = p->instrs[middle + q].micro_batch - p->instrs[middle].micro_batch;
        uint32_t k = 0;
        if (step <= 0 || step > (int32_t)TURN_MICRO_MAX)
            continue;
        while (k < 2 * q && again(s, p, middle + k, middle + k + q, step))
            k++;
        if (k == 2 * q) {
            *micro = (uint32_t)step;
            return q;
        }
    }
    return 0;
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Each rank's own period, then all at the least common turn. */
static bool stretches_find(struct steady *s)
{
    uint32_t ranks = s->plan->rank_count, most = 0;
    const struct program *first = &s->plan->ranks[0].programs[s->kind];
    if (first->instr_count < 64 || first->instrs[first->instr_count / 2].micro_batch < 0)
        return false;
    s->cls = s->micro_class[first->instrs[first->instr_count / 2].micro_batch];
    s->micro = 1;
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t micro = 0;
        s->stretches[r].period = period_find(s, &s->plan->ranks[r].programs[s->kind], &micro);
        if (s->stretches[r].period == 0)
            return false;
        s->stretches[r].kept = micro;
        s->micro = s->micro / gcd(s->micro, micro) * micro;
        if (s->micro > TURN_MICRO_MAX)
            return false;
    }
    s->turns_min = UINT32_MAX;
    for (uint32_t r = 0; r < ranks; r++) {
        struct stretch *t = &s->stretches[r];
        const struct program *p = &s->plan->ranks[r].programs[s->kind];
        t->period *= s->micro / t->kept;
        uint32_t low = p->instr_count / 2, high = low;
        if (t->period > p->instr_count / 4)
            return false;
        while (low > 0 && again(s, p, low - 1, low - 1 + t->period, (int32_t)s->micro))
            low--;
        while (high + t->period < p->instr_count && again(s, p, high, high + t->period, (int32_t)s->micro))
            high++;
        t->begin = low;
        t->turns = (high + t->period - low) / t->period;
        s->turns_min = t->turns < s->turns_min ? t->turns : s->turns_min;
        most = t->turns > most ? t->turns : most;
    }
    s->spread = most - s->turns_min;
    return true;
}

/* Every turn must meet as often as its counterparts do: transfers of each pair, collectives of each group. */
struct tally {
    uint32_t key[4], count;
};

static int tally_compare(const void *left, const void *right)
{
    return memcmp(left, right, sizeof(((struct tally *)left)->key));
}

static int turns_match(const struct steady *s, bool *match, struct err *err)
{
    uint32_t count = 0, total = 0;
    for (uint32_t r = 0; r < s->plan->rank_count; r++)
        total += s->stretches[r].period;
    struct tally *list = calloc((size_t)total + 1, sizeof(*list));
    if (!list)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    for (uint32_t r = 0; r < s->plan->rank_count; r++) {
        const struct instr *x = &s->plan->ranks[r].programs[s->kind].instrs[s->stretches[r].begin];
        for (uint32_t i = 0; i < s->stretches[r].period; i++) {
            uint32_t peer = (uint32_t)x[i].peer, sends = x[i].op == OP_SEND || x[i].op == OP_PUSH;
            if (x[i].queue == QUEUE_GROUP)
                list[count++] = (struct tally){.key = {1, (uint32_t)x[i].group, r, 0}};
            else if (x[i].queue == QUEUE_SEND || x[i].queue == QUEUE_RECV)
                list[count++] = (struct tally){.key = {0, sends ? r : peer, sends ? peer : r, sends}};
        }
    }
    qsort(list, count, sizeof(*list), tally_compare);
    uint32_t kinds = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (kinds == 0 || tally_compare(&list[kinds - 1], &list[i]) != 0)
            list[kinds++] = list[i];
        list[kinds - 1].count++;
    }
    *match = true;
    for (uint32_t i = 0; i < kinds && *match; i++) {
        struct tally want = list[i];
        bool group = want.key[0] == 1;
        for (uint32_t k = 0; k < (group ? s->plan->groups[want.key[1]].rank_count : 1) && *match; k++) {
            if (group)
                want.key[2] = s->plan->groups[want.key[1]].ranks[k];
            else
                want.key[3] = !list[i].key[3];
            const struct tally *other = bsearch(&want, list, kinds, sizeof(*list), tally_compare);
            *match = other && other->count == list[i].count;
        }
    }
    free(list);
    return 0;
}

/* One rank's program without `removed` turns. *possible: false when something behind the stretch waits for
 * something that was taken out. */
static int program_shorten(const struct steady *s, uint32_t rank, struct program *out, bool *possible,
                           struct err *err)
{
    const struct program *p = &s->plan->ranks[rank].programs[s->kind];
    const struct stretch *t = &s->stretches[rank];
    uint32_t gone = s->removed * t->period, cut = t->begin + t->kept * t->period, after = 0;
    uint32_t stretch_end = t->begin + t->turns * t->period;
    out->instr_count = p->instr_count - gone;
    out->instrs = calloc((size_t)out->instr_count + 1, sizeof(*out->instrs));
    out->after = calloc((size_t)p->after_total + 1, sizeof(*out->after));
    if (!out->instrs || !out->after)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    for (uint32_t i = 0; i < out->instr_count; i++) {
        uint32_t old = i < cut ? i : i + gone;
        struct instr x = p->instrs[old];
        uint32_t first = x.after_first;
        x.after_first = after;
        for (uint32_t k = 0; k < x.after_count; k++) {
            uint32_t on = p->after[first + k];
            if (i >= cut && (on >= t->begin + gone || old < stretch_end))
                on -= gone;
            else if (i >= cut && on >= t->begin)
                *possible = false;
            out->after[after++] = on;
        }
        out->instrs[i] = x;
    }
    out->after_total = after;
    return 0;
}

static void shorter_drop(struct steady *s)
{
    sim_destroy(s->sim);
    s->sim = NULL;
    for (uint32_t r = 0; s->shorter.ranks && r < s->plan->rank_count; r++)
        program_fini(&s->shorter.ranks[r].programs[s->kind]);
    free(s->shorter.ranks);
    s->shorter = (struct plan){0};
}

/* Builds the plan with `kept` turns or a few more, so that a multiple of `unit` is gone. *possible: false
 * when that is not much fewer. */
static int shorter_build(struct steady *s, uint32_t kept, uint32_t unit, bool *possible, struct err *err)
{
    shorter_drop(s);
    s->removed = s->turns_min > kept ? (s->turns_min - kept) / unit * unit : 0;
    *possible = s->removed >= WORTH * (s->turns_min - s->removed);
    if (!*possible)
        return 0;
    s->shorter = *s->plan;
    s->shorter.ranks = calloc(s->plan->rank_count, sizeof(*s->shorter.ranks));
    if (!s->shorter.ranks)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    int result = 0;
    for (uint32_t r = 0; r < s->plan->rank_count && result == 0; r++) {
        s->shorter.ranks[r] = s->plan->ranks[r];
        memset(s->shorter.ranks[r].programs, 0, sizeof(s->shorter.ranks[r].programs));
        s->stretches[r].kept = s->stretches[r].turns - s->removed;
        result = program_shorten(s, r, &s->shorter.ranks[r].programs[s->kind], possible, err);
    }
    if (result == 0 && *possible)
        result = sim_create_loose(&s->shorter, s->kind, &s->sim, err);
    return result;
}

int steady_create(const struct plan *plan, int kind, const uint32_t *micro_class, struct steady **out,
                  struct err *err)
{
    bool possible = false;
    struct steady *s = calloc(1, sizeof(*s));
    *out = NULL;
    if (!s)
        return err_set(err, ERR_NOMEM, "simulator: out of memory");
    *s = (struct steady){.plan = plan, .kind = kind, .micro_class = micro_class};
    s->stretches = calloc((size_t)plan->rank_count + 1, sizeof(*s->stretches));
    int result = s->stretches ? 0 : err_set(err, ERR_NOMEM, "simulator: out of memory");
    if (result == 0 && stretches_find(s))
        result = turns_match(s, &possible, err);
    if (result == 0 && possible)
        result = shorter_build(s, TURNS_KEPT + 2 * s->spread, TURNS_UNIT, &possible, err);
    s->micro_class = NULL;
    if (result < 0 || !possible) {
        steady_destroy(s);
        return result;
    }
    *out = s;
    return 0;
}

void steady_destroy(struct steady *s)
{
    if (!s)
        return;
    shorter_drop(s);
    free(s->stretches);
    free(s);
}

const struct sim *steady_sim(const struct steady *s)
{
    return s->sim;
}

/* When all ranks are in the middle of their lists. */
static void middle_of(const struct steady *s, double *from, double *to)
{
    const struct plan_graph *g = sim_graph(s->sim);
    *from = 0;
    *to = INFINITY;
    for (uint32_t r = 0; r < s->plan->rank_count; r++) {
        const struct stretch *t = &s->stretches[r];
        uint32_t begin = g->base[r] + t->begin, end = begin + t->kept * t->period;
        for (uint32_t n = g->base[r]; n < begin; n++)
            *from = fmax(*from, sim_end(s->sim, n));
        for (uint32_t n = end; n < g->base[r + 1]; n++)
            *to = fmin(*to, sim_end(s->sim, n));
    }
}

/* Does every end within (from, to] come again `shift` later, `turns` turns on? */
static bool repeats(const struct steady *s, double from, double to, uint32_t turns, double shift)
{
    const struct plan_graph *g = sim_graph(s->sim);
    double near = ROUNDING * to;
    for (uint32_t r = 0; r < s->plan->rank_count; r++) {
        const struct stretch *t = &s->stretches[r];
        uint32_t begin = g->base[r] + t->begin, end = begin + t->kept * t->period, far = turns * t->period;
        uint32_t seen = 0;
        for (uint32_t n = begin; n < end; n++) {
            double over = sim_end(s->sim, n);
            if (over <= from || over > to)
                continue;
            /* what the last period rests on must have been looked at too */
            if (over > to - shift && (sim_ready(s->sim, n) < from || sim_begin(s->sim, n) < from))
                return false;
            if (over > to - shift - near)
                continue;
            if (n + far >= end || fabs(sim_end(s->sim, n + far) - over - shift) > near)
                return false;
            seen++;
        }
        if (seen < 2 * far)
            return false;
    }
    return true;
}

/* The period of the shortened run: turns, and seconds to all the digits there are. 0: none. */
static uint32_t period_of(const struct steady *s, double *shift)
{
    const struct plan_graph *g = sim_graph(s->sim);
    const struct stretch *t = &s->stretches[0];
    double from, to;
    middle_of(s, &from, &to);
    if (!(to > from) || !isfinite(to))
        return 0;
    from += (to - from) / 3; /* where it has settled */
    uint32_t last = g->base[0] + t->begin + t->kept * t->period - 1, first = g->base[0] + t->begin;
    while (last > first && sim_end(s->sim, last) > to)
        last--;
    for (uint32_t turns = 1; turns <= PERIOD_MAX; turns++) {
        uint32_t far = turns * t->period, times = 0;
        while (last >= first + (times + 1) * far && sim_end(s->sim, last - (times + 1) * far) > from)
            times++;
        if (times < 3)
            break;
        *shift = (sim_end(s->sim, last) - sim_end(s->sim, last - times * far)) / times;
        if (*shift > 0 && repeats(s, from, to, turns, *shift))
            return turns;
    }
    return 0;
}

/* Adds what a rank does in the turns that were taken out. */
static void rank_complete(const struct steady *s, const struct sim_costs *costs, uint32_t rank,
                          struct sim_rank *sums)
{
    const struct stretch *t = &s->stretches[rank];
    const struct instr *x = &s->plan->ranks[rank].programs[s->kind].instrs[t->begin];
    double compute = 0, sent = 0;
    for (uint32_t i = 0; i < t->period; i++, x++) {
        if (x->queue == QUEUE_COMPUTE || x->queue == QUEUE_COPY)
            compute += costs->compute_s(costs->context, rank, x);
        if (x->op != OP_SEND && x->op != OP_PUSH)
            continue;
        struct sim_wire wire = {0};
        double bytes = costs->bytes(costs->context, rank, x);
        costs->wire(costs->context, rank, (uint32_t)x->peer, &wire);
        sent += bytes > 0 ? bytes / wire.bytes_per_s : 0;
    }
    sums->compute_s += s->removed * compute;
    sums->send_s += s->removed * sent;
}

int steady_run(struct steady *s, const struct sim_costs *costs, double *seconds, struct sim_rank *ranks,
               struct err *err)
{
    bool possible = s->sim != NULL;
    while (possible && costs->jitter_sigma <= 0) {
        double shift = 0;
        uint32_t kept = s->turns_min - s->removed;
        if (sim_run(s->sim, costs, seconds, ranks, NULL, 0, err) < 0)
            return -1;
        uint32_t turns = period_of(s, &shift);
        if (turns > 0 && s->removed % turns == 0) {
            double more = shift * (s->removed / turns);
            *seconds += more;
            for (uint32_t r = 0; ranks && r < s->plan->rank_count; r++) {
                ranks[r].end_s += more;
                rank_complete(s, costs, r, &ranks[r]);
            }
            return 1;
        }
        /* whole periods, or more of it to find one in */
        if (shorter_build(s, turns ? kept : 2 * kept, turns ? turns : TURNS_UNIT, &possible, err) < 0)
            return -1;
    }
    return 0;
}
