/* Keeps the planner's answers during one decision, and decides how many devices a job may take. */
#include <stdlib.h>

#include "common/array.h"
#include "scheduler/policy/policy_private.h"

#define SLOTS_MIN 256u

enum answer_kind {
    ANSWER_PLAN,   /* the planner's best plan on at most `most` devices */
    ANSWER_CHOICE, /* the plan that the job should take, given what its devices cost (width_choose) */
};

struct width_entry {
    uint32_t shape, set;
    uint16_t least, most, fair;
    uint8_t kind, used, fit;
    uint32_t plan;
};

static uint64_t width_mix(uint64_t x)
{
    /* the finaliser of splitmix64 (Steele, Lea and Flood 2014) */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int width_answers_init(struct width_answers *answers, const struct policy_planner *planner,
                       const struct policy_settings *settings, struct err *err)
{
    *answers = (struct width_answers){
        .planner = planner, .settings = settings, .set_slot_count = SLOTS_MIN, .entry_slots = SLOTS_MIN};
    answers->set_slots = calloc(SLOTS_MIN, sizeof(*answers->set_slots));
    answers->entries = calloc(SLOTS_MIN, sizeof(*answers->entries));
    return answers->set_slots && answers->entries ? 0 : err_set(err, ERR_NOMEM, "no memory for a decision");
}

void width_answers_fini(struct width_answers *answers)
{
    free(answers->sets);
    free(answers->set_slots);
    free(answers->entries);
    free(answers->plans);
}

/* ---- sets of devices ---- */

static size_t set_slot(const struct width_answers *answers, const struct device_set *set)
{
    const size_t mask = answers->set_slot_count - 1;
    uint64_t hash = 0;
    for (size_t i = 0; i < DEVICE_SET_WORDS; i++)
        if (set->words[i])
            hash += width_mix(set->words[i] + i);
    size_t at = (size_t)hash & mask;
    while (answers->set_slots[at] != 0 && !device_set_equal(&answers->sets[answers->set_slots[at] - 1], set))
        at = (at + 1) & mask;
    return at;
}

static int grow_sets(struct width_answers *answers, struct err *err)
{
    uint32_t *slots = calloc(2 * answers->set_slot_count, sizeof(*slots));
    if (!slots)
        return err_set(err, ERR_NOMEM, "no memory for a decision");
    free(answers->set_slots);
    answers->set_slots = slots;
    answers->set_slot_count *= 2;
    for (size_t i = 0; i < answers->set_count; i++)
        answers->set_slots[set_slot(answers, &answers->sets[i])] = (uint32_t)i + 1;
    return 0;
}

int64_t width_set(struct width_answers *answers, const struct device_set *set, struct err *err)
{
    size_t at = set_slot(answers, set);
    if (answers->set_slots[at] != 0)
        return answers->set_slots[at] - 1;
    if (ARRAY_RESERVE(answers->sets, answers->set_capacity, answers->set_count + 1, err) < 0)
        return -1;
    answers->sets[answers->set_count++] = *set;
    answers->set_slots[at] = (uint32_t)answers->set_count;
    if (2 * answers->set_count > answers->set_slot_count && grow_sets(answers, err) < 0)
        return -1;
    return (int64_t)answers->set_count - 1;
}

/* ---- answers ---- */

/* Returns the entry of a question, or the free entry where its answer belongs. */
static struct width_entry *width_entry_of(const struct width_answers *answers, const struct width_question *q,
                                          enum answer_kind kind)
{
    const size_t mask = answers->entry_slots - 1;
    const uint64_t low = (uint64_t)q->shape << 32 | q->set;
    const uint64_t high =
        (uint64_t)q->least << 48 | (uint64_t)q->most << 32 | (uint64_t)q->fair << 16 | (uint64_t)kind;
    size_t at = (size_t)width_mix(low + width_mix(high)) & mask;
    for (;; at = (at + 1) & mask) {
        struct width_entry *entry = &answers->entries[at];
        if (!entry->used || (entry->shape == q->shape && entry->set == q->set && entry->least == q->least &&
                             entry->most == q->most && entry->kind == kind && entry->fair == q->fair))
            return entry;
    }
}

static int grow_entries(struct width_answers *answers, struct err *err)
{
    struct width_entry *old = answers->entries;
    const size_t count = answers->entry_slots;
    answers->entries = calloc(2 * count, sizeof(*answers->entries));
    if (!answers->entries) {
        answers->entries = old;
        return err_set(err, ERR_NOMEM, "no memory for a decision");
    }
    answers->entry_slots = 2 * count;
    for (size_t i = 0; i < count; i++) {
        if (old[i].used) {
            const struct width_question q = {old[i].shape, old[i].set, old[i].least, old[i].most,
                                             old[i].fair};
            *width_entry_of(answers, &q, old[i].kind) = old[i];
        }
    }
    free(old);
    return 0;
}

static int width_remember(struct width_answers *answers, const struct width_question *q,
                          enum answer_kind kind, enum policy_fit fit, uint32_t plan, struct err *err)
{
    if (2 * (answers->entry_count + 1) > answers->entry_slots && grow_entries(answers, err) < 0)
        return -1;
    answers->entry_count++;
    *width_entry_of(answers, q, kind) = (struct width_entry){.shape = q->shape,
                                                             .set = q->set,
                                                             .least = q->least,
                                                             .most = q->most,
                                                             .kind = (uint8_t)kind,
                                                             .fair = q->fair,
                                                             .used = 1,
                                                             .fit = (uint8_t)fit,
                                                             .plan = plan};
    return (int)fit;
}

/* Asks the planner for the plan of a shape on at most question->most devices of a set, or takes its
 * remembered answer. */
static int width_ask(struct width_answers *answers, const struct width_question *question, uint32_t *plan,
                     struct err *err)
{
    const struct width_question q = {.shape = question->shape, .set = question->set, .most = question->most};
    const struct width_entry *entry = width_entry_of(answers, &q, ANSWER_PLAN);
    if (entry->used) {
        *plan = entry->plan;
        return entry->fit;
    }
    const struct device_set among = answers->sets[q.set];
    if (device_set_is_empty(&among))
        return width_remember(answers, &q, ANSWER_PLAN, FIT_NO, 0, err);
    if (ARRAY_RESERVE(answers->plans, answers->plan_capacity, answers->plan_count + 1, err) < 0)
        return -1;
    struct policy_plan *to = &answers->plans[answers->plan_count];
    memset(to, 0, sizeof(*to));
    enum policy_fit fit = answers->planner->best(answers->planner->arg, q.shape, &among, q.most, to);
    /* A plan that has no devices or no predicted time cannot be compared with others. */
    if (fit == FIT_YES && (!(to->step_s > 0) || !(to->rate > 0) || device_set_is_empty(&to->devices) ||
                           !device_set_is_subset(&to->devices, &among)))
        fit = FIT_NO;
    *plan = (uint32_t)answers->plan_count;
    answers->plan_count += fit == FIT_YES ? 1 : 0;
    return width_remember(answers, &q, ANSWER_PLAN, fit, *plan, err);
}

/* Returns the plan's steps per charged device-second. */
static double worth(const struct policy_plan *plan)
{
    return 1 / (plan->step_s * plan->rate);
}

/* Takes the fastest plan on at most question->fair devices whose steps per charged device-second reach
 * settings->width_least of the best such plan. If no plan fits on that few devices, it takes the plan on the
 * fewest devices. The number of devices is doubled from plan to plan, so that few plans are asked for. */
static int width_narrow(struct width_answers *answers, const struct width_question *question, uint32_t *plan,
                        struct err *err)
{
    uint32_t plans[16], count = 0;
    struct width_question q = *question;
    const size_t room = device_set_count(&answers->sets[q.set]);
    const size_t widest = question->most > 0 && question->most < room ? question->most : room;
    double best = 0, fastest = 0;
    for (size_t most = 1; most < 2 * widest && (most <= question->fair || count == 0); most *= 2) {
        uint32_t other;
        q.most = (uint16_t)(most < widest ? most : widest);
        if (q.most < question->least)
            continue;
        const int fit = width_ask(answers, &q, &other, err);
        if (fit < 0 || fit == FIT_PENDING)
            return fit;
        if (fit == FIT_YES && device_set_count(&answers->plans[other].devices) >= question->least)
            plans[count++] = other;
    }
    for (uint32_t i = 0; i < count; i++)
        best = worth(&answers->plans[plans[i]]) > best ? worth(&answers->plans[plans[i]]) : best;
    for (uint32_t i = 0; i < count; i++) {
        const struct policy_plan *one = &answers->plans[plans[i]];
        if (worth(one) >= answers->settings->width_least * best && (fastest == 0 || one->step_s < fastest)) {
            fastest = one->step_s;
            *plan = plans[i];
        }
    }
    return count > 0 ? FIT_YES : FIT_NO;
}

int width_choose(struct width_answers *answers, const struct width_question *question, uint32_t *plan,
                 struct err *err)
{
    const struct width_entry *entry = width_entry_of(answers, question, ANSWER_CHOICE);
    int fit;
    if (entry->used) {
        *plan = entry->plan;
        return entry->fit;
    }
    *plan = 0;
    if (question->fair > 0 && answers->settings->width) {
        fit = width_narrow(answers, question, plan, err);
    } else {
        fit = width_ask(answers, question, plan, err);
        if (fit == FIT_YES && device_set_count(&answers->plans[*plan].devices) < question->least)
            fit = FIT_NO;
    }
    return fit < 0 ? -1 : width_remember(answers, question, ANSWER_CHOICE, (enum policy_fit)fit, *plan, err);
}
