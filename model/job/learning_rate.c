/* Learning rates by transformers' names (optimization.py of transformers 5: get_scheduler and the functions
 * it lists). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "model/job/spec.h"

#define PI 3.14159265358979323846
#define FEW_STEPS 20               /* fewer hardly change a model at the learning rates that people use */
#define INVERSE_SQRT_SCALE 10000.0 /* transformers' timescale without a warm-up, in steps */

static double half_cosine(double part)
{
    return 0.5 * (1 + cos(PI * part));
}

/* Returns a factor that falls from 1 to 0 in a schedule that ends; 'p' is the part (0 to 1) of the steps
 * behind the warm-up that are done. */
static double share_left(const struct spec_train_part *t, uint64_t total, uint64_t step, double p)
{
    double cycles = t->cycles;
    switch (t->schedule) {
    case SPEC_SCHEDULE_LINEAR:
        return 1 - p;
    case SPEC_SCHEDULE_POLYNOMIAL:
        return p < 1 ? pow(1 - p, t->power) : 0;
    case SPEC_SCHEDULE_COSINE_WITH_RESTARTS:
        return p < 1 ? half_cosine(fmod(cycles * p, 1)) : 0;
    case SPEC_SCHEDULE_WARMUP_STABLE_DECAY:
        if (step >= total || t->decay_steps == 0)
            return step >= total ? 0 : 1;
        return half_cosine(fmax(0, 1 - (double)(total - step) / (double)t->decay_steps));
    /* This schedule is one step ahead, so that the last step reaches the end. */
    case SPEC_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR:
        return half_cosine(p < 1 ? p + 1 / (double)(total - t->warmup_steps) : 1);
    default:
        return half_cosine(p);
    }
}

double spec_learning_rate(const struct spec_train_part *train, uint64_t total_steps, uint64_t step)
{
    const double peak = train->learning_rate, last = train->final_fraction;
    const uint64_t warm = train->warmup_steps;
    if (step < warm)
        return peak * (double)(step + 1) / (double)warm;
    if (train->schedule == SPEC_SCHEDULE_CONSTANT || train->schedule == SPEC_SCHEDULE_CONSTANT_WITH_WARMUP)
        return peak;
    if (train->schedule == SPEC_SCHEDULE_INVERSE_SQRT) {
        double scale = warm > 0 ? (double)warm : INVERSE_SQRT_SCALE;
        return peak * sqrt(scale / ((double)(step - warm) + scale));
    }
    double progress = 1;
    if (total_steps > warm && step < total_steps)
        progress = (double)(step - warm) / (double)(total_steps - warm);
    return peak * (last + (1 - last) * share_left(train, total_steps, step, progress));
}

bool spec_epochs_doubt(const struct spec_train_part *train, uint64_t steps, char text[SPEC_DOUBT_BYTES])
{
    if (train->epochs == 0 || train->steps > 0 || steps == 0 || steps >= FEW_STEPS)
        return false;
    snprintf(text, SPEC_DOUBT_BYTES,
             "train.epochs is %u, and the rows make %" PRIu64
             " step%s of %s: a model hardly changes in so few. %" PRIu64 " epochs make %d or more",
             train->epochs, steps, steps == 1 ? "" : "s", train->epochs == 1 ? "it" : "them",
             (FEW_STEPS * train->epochs + steps - 1) / steps, FEW_STEPS);
    return true;
}

bool spec_warmup_doubt(const struct spec_train_part *train, uint64_t steps, char text[SPEC_DOUBT_BYTES])
{
    const uint64_t warm = train->warmup_steps;
    if (steps == 0 || warm == 0 || warm < steps - steps / 2)
        return false;
    const int used = snprintf(text, SPEC_DOUBT_BYTES,
                              "train.warmup_steps is %" PRIu64 " and the job has %" PRIu64 " step%s: ", warm,
                              steps, steps == 1 ? "" : "s");
    if (warm > steps)
        snprintf(text + used, SPEC_DOUBT_BYTES - (size_t)used,
                 "the learning rate gets no higher than %g, of train.learning_rate's %g",
                 spec_learning_rate(train, steps, steps - 1), train->learning_rate);
    else
        snprintf(text + used, SPEC_DOUBT_BYTES - (size_t)used,
                 "the learning rate reaches train.learning_rate, %g, only in step %" PRIu64,
                 train->learning_rate, warm);
    return true;
}
