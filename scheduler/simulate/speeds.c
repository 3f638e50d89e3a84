#include "scheduler/simulate/speeds.h"

#include <stdlib.h>

struct ranked_device {
    double speed;
    size_t device;
};

static int compare_speeds(const void *a, const void *b)
{
    const struct ranked_device *x = a, *y = b;
    if (x->speed != y->speed)
        return x->speed > y->speed ? -1 : 1;
    return x->device < y->device ? -1 : x->device > y->device;
}

enum policy_fit speeds_best(void *arg, uint32_t shape, const struct device_set *among, uint16_t most,
                            struct policy_plan *plan)
{
    const struct speed_model *model = arg;
    const struct speed_shape *of = &model->shapes[shape];
    struct ranked_device ranked[POLICY_DEVICES_MAX];
    size_t count = 0, best = 0;
    double speed = 0, bytes = 0, best_rate = 0, best_speed = 0;
    for (size_t d = device_set_next(among, 0); d < model->device_count; d = device_set_next(among, d + 1)) {
        const double factor = model->affinity ? model->affinity[shape * model->device_count + d] : 1;
        if (factor > 0)
            ranked[count++] = (struct ranked_device){factor * model->devices[d].speed, d};
    }
    qsort(ranked, count, sizeof(*ranked), compare_speeds);
    for (size_t k = 1; k <= count && (most == 0 || k <= most); k++) {
        speed += ranked[k - 1].speed;
        bytes += model->devices[ranked[k - 1].device].bytes;
        const double together = speed / (1 + of->loss * (double)(k - 1));
        if (bytes >= of->bytes && together > best_speed) {
            best = k;
            best_speed = together;
            best_rate = speed;
        }
    }
    if (best == 0)
        return FIT_NO;
    *plan = (struct policy_plan){.step_s = of->step_s / best_speed, .rate = best_rate};
    for (size_t k = 0; k < best; k++)
        device_set_add(&plan->devices, ranked[k].device);
    return FIT_YES;
}
