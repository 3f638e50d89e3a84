/* Λ = max(R·max(A, D, E, C), A + D + E + C); T = (L − 1)·Λ + A + D + E + C + (R − 1)·max(A, D, E, C). */
#include "planner/expert/zebra.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double once(const struct zebra *z)
{
    return z->attention_s + z->dispatch_s + z->experts_s + z->combine_s;
}

static double slowest(const struct zebra *z)
{
    double compute = larger(larger(z->attention_s, z->experts_s), z->shared_s);
    return larger(larger(compute, z->wire_s), larger(z->dispatch_s, z->combine_s));
}

double zebra_period(const struct zebra *z, uint32_t micro_batches)
{
    return larger(micro_batches * slowest(z), once(z));
}

double zebra_seconds(const struct zebra *z, uint32_t layers, uint32_t micro_batches)
{
    if (layers == 0 || micro_batches == 0)
        return 0;
    return (layers - 1) * zebra_period(z, micro_batches) + once(z) + (micro_batches - 1) * slowest(z);
}

bool zebra_gate(const struct zebra *z)
{
    return larger(z->dispatch_s, z->combine_s) <= larger(z->attention_s, z->experts_s);
}
