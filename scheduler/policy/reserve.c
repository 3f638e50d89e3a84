/* Tracks when devices become free and for which jobs they are reserved, and finds the best start of a waiting
 * job. */
#include <math.h>
#include <stdlib.h>

#include "scheduler/policy/policy_private.h"

/* TIMES_MAX: most times at which a start is considered. If there are more, only the 1st, 2nd, 4th, 8th, … and
 * the last are considered. ATTEMPTS_MAX: sets of devices that are tried at one time, each without those that
 * are reserved before the job would end on the set before. */
enum { TIMES_MAX = 16, ATTEMPTS_MAX = 4 };

static int64_t add_us(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

int64_t reserve_end(int64_t begins_us, const struct policy_job *job, const struct policy_plan *plan)
{
    const double us = plan->step_s * 1e6 * (double)(job->steps_left > 0 ? job->steps_left : 0);
    int64_t length = us < 9e18 ? (int64_t)us : INT64_MAX;
    if (job->limit_us > 0 && length > job->limit_us)
        length = job->limit_us;
    return add_us(begins_us, length);
}

/* Returns the expected end of a run or an absence that has lasted since since_us: it is expected to last as
 * long again. */
static int64_t expect(int64_t since_us, int64_t now_us)
{
    return since_us < now_us ? add_us(now_us, now_us - since_us) : now_us;
}

/* Returns until when the job of the plan needs the device: to its end or, on a device whose node leaves,
 * until it has been brought there and has done a step, after which a checkpoint can be stored. */
static int64_t needed_until(const struct reserve_state *reserve, size_t device,
                            const struct policy_plan *plan, int64_t starts_us, int64_t ends_us)
{
    const int64_t reach_us = reserve_reach(reserve, plan, starts_us);
    return reserve->devices[device].leaves_us != INT64_MAX && reach_us < ends_us ? reach_us : ends_us;
}

int64_t reserve_reach(const struct reserve_state *reserve, const struct policy_plan *plan, int64_t starts_us)
{
    const double step_us = fmin(plan->step_s * 1e6, 1e18);
    return add_us(starts_us, reserve->move_us + (int64_t)step_us);
}

static void hold(struct reserve_state *reserve, size_t device, enum holder_kind kind, int64_t holder,
                 int64_t free_us)
{
    struct device_claim *claim = &reserve->devices[device];
    if (claim->held_by == HOLDER_NONE || free_us > reserve->free_us[device]) {
        claim->held_by = kind;
        claim->holder = holder;
    }
    if (free_us > reserve->free_us[device])
        reserve->free_us[device] = free_us;
}

static void take_intervals(struct reserve_state *reserve)
{
    const struct policy_snapshot *snapshot = reserve->snapshot;
    for (size_t i = 0; i < snapshot->interval_count; i++) {
        const struct policy_interval *interval = &snapshot->intervals[i];
        if (interval->ends_us <= reserve->now_us)
            continue;
        for (size_t d = device_set_next(&interval->devices, 0); d < snapshot->device_count;
             d = device_set_next(&interval->devices, d + 1)) {
            struct device_claim *device = &reserve->devices[d];
            if (interval->begins_us <= reserve->now_us) {
                hold(reserve, d, HOLDER_INTERVAL, interval->id, interval->ends_us);
                device_set_remove(&reserve->free, d);
                continue;
            }
            reserve->booked = true;
            if (interval->begins_us < reserve->until_us[d]) {
                reserve->until_us[d] = interval->begins_us;
                device->reserved_for = interval->id;
                device->kept_by = HOLDER_INTERVAL;
            }
            if (interval->begins_us < device->booked_us) {
                device->booked_us = interval->begins_us;
                device->leaves_us = interval->leaves ? interval->begins_us : INT64_MAX;
            }
            reserve->leaving = reserve->leaving || interval->leaves;
            if (interval->ends_us > device->back_us)
                device->back_us = interval->ends_us;
        }
    }
}

void reserve_init(struct reserve_state *reserve, const struct policy_snapshot *snapshot,
                  const struct policy_settings *settings, int64_t now_us)
{
    memset(reserve, 0, sizeof(*reserve));
    reserve->move_us = (int64_t)(1e6 * settings->move_s);
    reserve->snapshot = snapshot;
    reserve->now_us = now_us;
    reserve->changed = true;
    for (size_t d = 0; d < snapshot->device_count; d++) {
        const bool there = device_set_has(&snapshot->present, d) && !device_set_has(&snapshot->unfit, d);
        struct device_claim *device = &reserve->devices[d];
        *device = (struct device_claim){
            .booked_us = INT64_MAX, .leaves_us = INT64_MAX, .holder = -1, .reserved_for = -1};
        reserve->free_us[d] = now_us;
        reserve->until_us[d] = INT64_MAX;
        device_set_add(&reserve->all, d);
        if (there) {
            device_set_add(&reserve->there, d);
        } else {
            const int64_t since_us = snapshot->away_since_us ? snapshot->away_since_us[d] : now_us;
            hold(reserve, d, HOLDER_AWAY, (int64_t)d, expect(since_us, now_us));
        }
    }
    reserve->free = reserve->there;
    for (size_t i = 0; i < snapshot->run_count; i++) {
        const struct policy_run *run = &snapshot->runs[i];
        int64_t ends_us = run->ends_us;
        if (ends_us == INT64_MAX || ends_us < now_us)
            ends_us = expect(ends_us == INT64_MAX ? run->started_us : ends_us, now_us);
        for (size_t d = device_set_next(&run->devices, 0); d < snapshot->device_count;
             d = device_set_next(&run->devices, d + 1))
            hold(reserve, d, HOLDER_JOB, run->job, ends_us);
        device_set_subtract(&reserve->free, &run->devices);
    }
    take_intervals(reserve);
}

static int compare_times(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the times and drops duplicates. Returns how many are left. */
static size_t sort_times(int64_t *times, size_t count)
{
    size_t distinct = 0;
    qsort(times, count, sizeof(*times), compare_times);
    for (size_t i = 0; i < count; i++)
        if (distinct == 0 || times[i] != times[distinct - 1])
            times[distinct++] = times[i];
    return distinct;
}

int reserve_windows(struct reserve_state *reserve, struct width_answers *answers, struct err *err)
{
    int64_t times[POLICY_DEVICES_MAX];
    size_t count = 0;
    if (!reserve->changed)
        return 0;
    reserve->changed = false;
    for (size_t d = device_set_next(&reserve->free, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&reserve->free, d + 1))
        times[count++] = reserve->until_us[d];
    count = sort_times(times, count);
    /* When there are too many windows, the first ones and the last one are kept. A job that ends within a
     * window that was left out is offered the last window's devices, which are free for longer. */
    if (count > RESERVE_WINDOWS_MAX) {
        times[RESERVE_WINDOWS_MAX - 1] = times[count - 1];
        count = RESERVE_WINDOWS_MAX;
    }
    reserve->window_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct device_set set = reserve->free;
        for (size_t d = times[i] > times[0] ? device_set_next(&set, 0) : POLICY_DEVICES_MAX;
             d < POLICY_DEVICES_MAX; d = device_set_next(&set, d + 1))
            if (reserve->until_us[d] < times[i])
                device_set_remove(&set, d);
        const int64_t number = width_set(answers, &set, err);
        if (number < 0)
            return -1;
        reserve->windows[reserve->window_count++] =
            (struct reserve_window){.until_us = times[i], .set = (uint32_t)number};
    }
    return 0;
}

static bool overlaps(const struct device_set *a, const struct device_set *b)
{
    struct device_set rest = *a;
    device_set_subtract(&rest, b);
    return !device_set_equal(&rest, a);
}

/* Returns the devices of `among` that are free at a time and neither booked nor reserved at that time. */
static struct device_set free_at(const struct reserve_state *reserve, const struct device_set *among,
                                 int64_t at_us)
{
    struct device_set set = *among;
    const size_t words = (reserve->snapshot->device_count + 63) / 64;
    for (size_t word = 0; word < words; word++) {
        const int64_t *free_us = reserve->free_us + 64 * word;
        uint64_t bits = 0;
        for (size_t i = 0; i < 64; i++)
            bits |= (uint64_t)(free_us[i] <= at_us) << i;
        set.words[word] &= bits;
    }
    for (size_t d = reserve->booked ? device_set_next(&set, 0) : POLICY_DEVICES_MAX; d < POLICY_DEVICES_MAX;
         d = device_set_next(&set, d + 1)) {
        const struct device_claim *device = &reserve->devices[d];
        if (at_us >= device->booked_us && at_us < device->back_us)
            device_set_remove(&set, d);
    }
    for (size_t i = 0; i < reserve->kept_count; i++)
        if (at_us >= reserve->kept[i].starts_us && at_us < reserve->kept[i].ends_us)
            device_set_subtract(&set, &reserve->kept[i].devices);
    return set;
}

/* Removes from `set` the devices whose bookings or reservations overlap with a job that runs from `at_us` to
 * `ends_us`. Returns whether the plan uses one of these devices. */
static bool drop_kept(const struct reserve_state *reserve, const struct policy_plan *plan, int64_t at_us,
                      int64_t ends_us, struct device_set *set)
{
    bool used = false;
    for (size_t i = 0; i < reserve->kept_count; i++) {
        const struct reserve_kept *kept = &reserve->kept[i];
        if (at_us < kept->ends_us && ends_us > kept->starts_us) {
            used = used || overlaps(&plan->devices, &kept->devices);
            device_set_subtract(set, &kept->devices);
        }
    }
    for (size_t d = reserve->booked ? device_set_next(set, 0) : POLICY_DEVICES_MAX; d < POLICY_DEVICES_MAX;
         d = device_set_next(set, d + 1)) {
        const struct device_claim *device = &reserve->devices[d];
        if (at_us < device->back_us && needed_until(reserve, d, plan, at_us, ends_us) > device->booked_us) {
            used = used || device_set_has(&plan->devices, d);
            device_set_remove(set, d);
        }
    }
    return used;
}

/* Returns the earliest time, at most `at_us`, at which all devices of the plan are free. */
static int64_t start_of(const struct reserve_state *reserve, const struct policy_plan *plan, int64_t at_us)
{
    const struct reserve_kept *before = reserve_before(reserve, plan, at_us);
    int64_t start_us = before && before->ends_us > reserve->now_us ? before->ends_us : reserve->now_us;
    for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&plan->devices, d + 1)) {
        const struct device_claim *device = &reserve->devices[d];
        if (device->booked_us != INT64_MAX)
            return at_us;
        start_us = reserve->free_us[d] > start_us ? reserve->free_us[d] : start_us;
    }
    return start_us;
}

/* Considers a start at one time, and keeps the better of it and *start in *start. */
static int reserve_weigh(const struct reserve_state *reserve, struct width_answers *answers,
                         const struct policy_job *job, struct width_question question, struct device_set set,
                         int64_t at_us, struct reserve_start *start, struct err *err)
{
    for (int attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
        uint32_t plan;
        const int64_t number = width_set(answers, &set, err);
        if (number < 0)
            return -1;
        question.set = (uint32_t)number;
        const int fit = width_choose(answers, &question, &plan, err);
        if (fit != FIT_YES)
            return fit;
        const int64_t starts_us = start_of(reserve, &answers->plans[plan], at_us);
        const int64_t ends_us = reserve_end(starts_us, job, &answers->plans[plan]);
        if (drop_kept(reserve, &answers->plans[plan], starts_us, ends_us, &set))
            continue;
        if (ends_us < start->ends_us)
            *start = (struct reserve_start){plan, starts_us, ends_us};
        return FIT_YES;
    }
    return FIT_NO;
}

/* Adds a time at which devices become free to the sorted times. */
static void reserve_add_time(struct reserve_state *reserve, int64_t at_us)
{
    size_t low = 0, high = reserve->time_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (reserve->times[middle] < at_us)
            low = middle + 1;
        else
            high = middle;
    }
    if (at_us == INT64_MAX || (low < reserve->time_count && reserve->times[low] == at_us) ||
        reserve->time_count == sizeof(reserve->times) / sizeof(reserve->times[0]))
        return;
    memmove(&reserve->times[low + 1], &reserve->times[low], (reserve->time_count - low) * sizeof(at_us));
    reserve->times[low] = at_us;
    reserve->time_count++;
}

static void find_times(struct reserve_state *reserve)
{
    size_t count = 0;
    for (size_t d = 0; d < reserve->snapshot->device_count; d++) {
        if (reserve->free_us[d] != INT64_MAX)
            reserve->times[count++] = reserve->free_us[d];
        if (reserve->devices[d].back_us > reserve->now_us && reserve->devices[d].back_us != INT64_MAX)
            reserve->times[count++] = reserve->devices[d].back_us;
    }
    for (size_t i = 0; i < reserve->kept_count; i++)
        if (reserve->kept[i].ends_us != INT64_MAX)
            reserve->times[count++] = reserve->kept[i].ends_us;
    reserve->time_count = sort_times(reserve->times, count);
}

int reserve_find(struct reserve_state *reserve, struct width_answers *answers, const struct policy_job *job,
                 struct width_question question, const struct device_set *among, struct reserve_start *start,
                 struct err *err)
{
    const int64_t before_us = start->ends_us;
    bool pending = false;
    if (reserve->time_count == 0)
        find_times(reserve);
    const size_t count = reserve->time_count;
    for (size_t i = 0; i < count && reserve->times[i] < start->ends_us;) {
        const struct device_set set = free_at(reserve, among, reserve->times[i]);
        const int fit = reserve_weigh(reserve, answers, job, question, set, reserve->times[i], start, err);
        if (fit < 0)
            return -1;
        pending = pending || fit == FIT_PENDING;
        if (count <= TIMES_MAX || i + 1 == count)
            i++;
        else
            i = 2 * i + 1 < count ? 2 * i + 1 : count - 1;
    }
    if (start->ends_us < before_us)
        return FIT_YES;
    return pending ? FIT_PENDING : FIT_NO;
}

void reserve_take(struct reserve_state *reserve, const struct policy_plan *plan, int64_t job, int64_t ends_us)
{
    for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&plan->devices, d + 1))
        hold(reserve, d, HOLDER_JOB, job, ends_us);
    device_set_subtract(&reserve->free, &plan->devices);
    reserve->changed = true;
    if (reserve->time_count > 0)
        reserve_add_time(reserve, ends_us);
}

void reserve_keep(struct reserve_state *reserve, const struct policy_plan *plan, int64_t job,
                  const struct reserve_start *start)
{
    if (reserve->kept_count < RESERVE_KEPT_MAX) {
        const bool dated = reserve_is_dated(reserve, plan, start->starts_us);
        reserve->kept[reserve->kept_count++] =
            (struct reserve_kept){job, start->starts_us, start->ends_us, dated, plan->devices};
    }
    for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&plan->devices, d + 1)) {
        struct device_claim *device = &reserve->devices[d];
        if (start->starts_us < reserve->until_us[d]) {
            reserve->until_us[d] = start->starts_us;
            device->reserved_for = job;
            device->kept_by = HOLDER_JOB;
        }
        reserve->changed = reserve->changed || device_set_has(&reserve->free, d);
    }
    if (reserve->time_count > 0)
        reserve_add_time(reserve, start->ends_us);
}

const struct reserve_kept *reserve_before(const struct reserve_state *reserve, const struct policy_plan *plan,
                                          int64_t starts_us)
{
    const struct reserve_kept *last = NULL;
    for (size_t i = 0; i < reserve->kept_count; i++) {
        const struct reserve_kept *kept = &reserve->kept[i];
        if (kept->ends_us <= starts_us && (!last || kept->ends_us > last->ends_us) &&
            overlaps(&plan->devices, &kept->devices))
            last = kept;
    }
    return last;
}

bool reserve_is_dated(const struct reserve_state *reserve, const struct policy_plan *plan, int64_t starts_us)
{
    for (size_t i = 0; i < reserve->kept_count; i++) {
        const struct reserve_kept *kept = &reserve->kept[i];
        if (!kept->dated && kept->ends_us <= starts_us && overlaps(&plan->devices, &kept->devices))
            return false;
    }
    return device_set_is_subset(&plan->devices, &reserve->there);
}

size_t reserve_last(const struct reserve_state *reserve, const struct device_set *devices)
{
    size_t last = device_set_next(devices, 0);
    for (size_t d = last; d < POLICY_DEVICES_MAX; d = device_set_next(devices, d + 1))
        if (reserve->free_us[d] > reserve->free_us[last])
            last = d;
    return last;
}

size_t reserve_kept_before(const struct reserve_state *reserve, const struct policy_plan *plan,
                           const struct reserve_start *start)
{
    size_t found = POLICY_DEVICES_MAX;
    for (size_t d = device_set_next(&plan->devices, 0); d < POLICY_DEVICES_MAX;
         d = device_set_next(&plan->devices, d + 1)) {
        const int64_t until_us = reserve->until_us[d];
        /* A job in front may hold the device from a moment before its node leaves. */
        const int64_t needed_us = until_us < reserve->devices[d].leaves_us
                                      ? start->ends_us
                                      : needed_until(reserve, d, plan, start->starts_us, start->ends_us);
        if (until_us < needed_us && (found == POLICY_DEVICES_MAX || until_us < reserve->until_us[found]))
            found = d;
    }
    return found;
}
