/* Few micro-batches: filling, what is sent while nobody computes and the sums at the end are most of a step,
 * and means know none of them. So a draft's cuts and the order of its groups are changed while running it
 * says that it ends sooner. */
#include "planner/many/many.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CUT_BETTER 0.9999 /* a change must be worth this much */
#define CUT_WIDEST 4      /* layers moved from a stage to the next at once; then half as many */

/* A change of a draft between stages `at` − 1 and `at`. */
struct cut_change {
    uint32_t at;
    int32_t layers; /* that go to the later one; 0: the two groups change places, with what they hold */
};

/* Who is in which place takes as many micro-batches under way as memory holds: running tells. */
static void groups_swap(struct place_choice *c, uint32_t *wanted, uint32_t at, uint32_t micro_batches)
{
    struct place_stage *a = &c->stages[at - 1], *b = &c->stages[at];
    uint32_t first = a->member_first, count = a->member_count, all = count + b->member_count;
    int32_t held = a->block_end - a->block_begin;
    for (uint32_t i = 0; i < count; i++) { /* rotated by one, as often as the first group has members */
        struct place_member member = c->members[first];
        uint32_t want = wanted[first];
        memmove(&c->members[first], &c->members[first + 1], (all - 1) * sizeof(*c->members));
        memmove(&wanted[first], &wanted[first + 1], (all - 1) * sizeof(*wanted));
        c->members[first + all - 1] = member;
        wanted[first + all - 1] = want;
    }
    for (uint32_t i = first; i < first + all; i++)
        c->members[i].window = wanted[i] = micro_batches;
    a->member_count = b->member_count;
    b->member_count = count;
    b->member_first = first + a->member_count;
    b->block_begin = a->block_end = b->block_end - held;
}

static bool change_apply(struct many_draft *d, struct cut_change change)
{
    struct place_choice *c = &d->choice;
    struct place_stage *before = &c->stages[change.at - 1], *after = &c->stages[change.at];
    if (change.layers == 0) {
        groups_swap(c, d->wanted, change.at, d->m->micro_batches);
    } else {
        before->block_end -= change.layers;
        after->block_begin -= change.layers;
    }
    /* the embedding and the head stay with a layer */
    return before->block_end - before->block_begin > (before->block_begin == 0) &&
           after->block_end - after->block_begin > (after->block_end == d->m->p->block_count);
}

/* Runs the draft as changed; as it was again if that is no faster. Returns whether it is, −1 ERR_NOMEM. */
static int change_try(struct many_draft *d, struct cut_change change, uint64_t *cells, struct err *err)
{
    struct place_choice held;
    double seconds = d->seconds;
    uint32_t *wanted = malloc(((size_t)d->choice.member_count + 1) * sizeof(*wanted));
    if (!wanted || choice_copy(&held, &d->choice, err) < 0) {
        free(wanted);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    memcpy(wanted, d->wanted, d->choice.member_count * sizeof(*wanted));
    int result = change_apply(d, change) ? many_draft_run(d, UINT32_MAX, err) : 0;
    bool ran = result == 0 && d->seconds < seconds * CUT_BETTER && d->cells > 0;
    *cells += d->cells + 1;
    if (ran) {
        choice_fini(&held);
        free(wanted);
        return 1;
    }
    choice_fini(&d->choice);
    free(d->wanted);
    d->choice = held;
    d->wanted = wanted;
    d->seconds = d->choice.estimate_s = seconds;
    return result;
}

int many_draft_cut(struct many_draft *d, uint64_t cells_most, struct err *err)
{
    uint64_t cells = 0;
    bool any = true;
    while (any && cells < cells_most) {
        any = false;
        for (int32_t wide = CUT_WIDEST; wide >= 0; wide = wide > 1 ? wide / 2 : wide - 1) {
            for (uint32_t at = 1; at < d->choice.stage_count && cells < cells_most; at++) {
                int better = change_try(d, (struct cut_change){at, wide}, &cells, err);
                if (better == 0 && wide > 0)
                    better = change_try(d, (struct cut_change){at, -wide}, &cells, err);
                if (better < 0)
                    return -1;
                any = any || better;
            }
        }
    }
    return 0;
}
