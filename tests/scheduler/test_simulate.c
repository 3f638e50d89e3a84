/* Tests the policies over simulated weeks: shares, bounded waits, reservations that are kept, and what
 * backfill gains. The longer months are behind MOTLEY_LONG. Seeds are printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/scheduler/generate.h"

static bool is_long(void)
{
    return getenv("MOTLEY_LONG") != NULL;
}

static struct generate_request week_of(uint64_t seed, double load)
{
    return (struct generate_request){.seed = seed,
                                     .devices = 8,
                                     .users = 20,
                                     .groups = 4,
                                     .shapes = 12,
                                     .days = is_long() ? 30 : 7,
                                     .load = load,
                                     .job_hours = 1,
                                     .spread = 1,
                                     .error = 0.1,
                                     .failures = 2,
                                     .burst = 4};
}

static void draw(const struct generate_request *request, struct generated_world *world)
{
    struct err err;
    if (generate_world(request, world, &err) < 0)
        fail_msg("%s", err.text);
}

static struct simulation_result run(const struct simulation *simulation)
{
    struct simulation_result result;
    struct err err;
    if (simulation_run(simulation, &result, &err) < 0)
        fail_msg("%s", err.text);
    return result;
}

static void check_equal_decisions(const struct generate_request *request)
{
    struct generated_world world;
    draw(request, &world);
    struct simulation_result a = run(&world.simulation), b = run(&world.simulation);
    assert_true(a.decisions > 100 && a.digest == b.digest && a.decisions == b.decisions);
    assert_memory_equal(a.outcomes, b.outcomes, world.simulation.job_count * sizeof(*a.outcomes));
    printf("seed %llu: %zu jobs of %zu users on %zu devices, %llu decisions, twice the same digest %016llx\n",
           (unsigned long long)request->seed, world.simulation.job_count, request->users, request->devices,
           (unsigned long long)a.decisions, (unsigned long long)a.digest);
    simulation_result_fini(&a);
    simulation_result_fini(&b);
    generated_world_fini(&world);
}

static void equal_arrivals_give_equal_decisions(void **state)
{
    (void)state;
    struct generate_request request = week_of(11, 0.9);
    check_equal_decisions(&request);
    request.devices = 64;
    request.users = 200;
    if (is_long())
        check_equal_decisions(&request);
}

/* Returns the charge of the account and of all accounts below it. */
static double charged(const struct generated_world *world, const struct simulation_result *result,
                      size_t account)
{
    double sum = result->charged_s[account];
    for (size_t i = account + 1; i < world->simulation.account_count; i++)
        if (world->accounts[i].parent == account)
            sum += charged(world, result, i);
    return sum;
}

/* Checks that each account's use is its share, within the larger of 3 % of the share and one longest job. */
static void check_shares(const struct generate_request *request, double half_life_s)
{
    struct policy_settings settings = policy_defaults;
    settings.half_life_s = half_life_s;
    struct generated_world world;
    draw(request, &world);
    world.simulation.settings = &settings;
    struct simulation_result result = run(&world.simulation);
    double longest = 0, worst = 0, worst_group = 0;
    for (size_t i = 0; i < world.simulation.job_count; i++)
        longest = fmax(longest, result.outcomes[i].charged_s);
    for (size_t i = 1; i < world.simulation.account_count; i++) {
        const uint16_t parent = world.accounts[i].parent;
        double weights = 0;
        for (size_t k = 1; k < world.simulation.account_count; k++)
            weights += world.accounts[k].parent == parent ? world.accounts[k].weight : 0;
        const double due = charged(&world, &result, parent) * world.accounts[i].weight / weights;
        const double used = charged(&world, &result, i);
        worst = fmax(worst, fabs(used - due) / fmax(0.03 * due, longest));
        worst_group = parent == 0 ? fmax(worst_group, fabs(used - due) / due) : worst_group;
        if (fabs(used - due) > fmax(0.03 * due, longest))
            fail_msg("seed %llu: account %zu used %.0f s of %.0f s due; the longest job took %.0f s",
                     (unsigned long long)request->seed, i, used, due, longest);
    }
    printf(
        "seed %llu: %zu users on %zu devices, %zu jobs, %.0f days: the worst account is off by %.2f of the "
        "bound, the worst group by %.2f %% of its share\n",
        (unsigned long long)request->seed, request->users, request->devices, world.simulation.job_count,
        request->days, worst, 100 * worst_group);
    simulation_result_fini(&result);
    generated_world_fini(&world);
}

/* While everybody has work, each account's use over three half-lives is its share. */
static void shares_are_what_is_due(void **state)
{
    (void)state;
    struct generate_request request = week_of(12, 6);
    request.days = 6;
    request.users = 12;
    request.job_hours = 0.25;
    request.from_the_start = true;
    request.failures = 0;
    check_shares(&request, 2 * 86400);
    if (!is_long())
        return;
    request.load = 4;
    request.days = 21;
    request.users = 200;
    request.groups = 5;
    request.shapes = 50;
    request.devices = 64;
    request.job_hours = 1;
    check_shares(&request, 7 * 86400);
}

/* Seconds on the reference card of the jobs that ended. Held device-seconds would not do: jobs that take more
 * devices than pay hold more and do less. */
static double work_done(const struct generated_world *world, const struct simulation_result *result)
{
    double seconds = 0;
    for (size_t i = 0; i < world->simulation.job_count; i++)
        if (result->outcomes[i].ends_us < INT64_MAX)
            seconds += (double)world->jobs[i].steps * world->shapes[world->jobs[i].shape].step_s;
    return seconds;
}

/* With backfill a loaded cluster does more work than when devices idle until the reserved jobs start. */
static void backfill_gets_more_work_done(void **state)
{
    (void)state;
    static const double loads[] = {0.9, 1.1};
    struct policy_settings without = policy_defaults;
    without.backfill = false;
    for (size_t i = 0; i < 2; i++) {
        double gain = 0;
        for (uint64_t seed = 13; seed < 17; seed++) {
            struct generate_request request = week_of(seed, loads[i]);
            request.wide = 0.1;
            struct generated_world world;
            draw(&request, &world);
            struct simulation_result with = run(&world.simulation);
            world.simulation.settings = &without;
            struct simulation_result idle = run(&world.simulation);
            gain += work_done(&world, &with) / work_done(&world, &idle) / 4;
            simulation_result_fini(&with);
            simulation_result_fini(&idle);
            generated_world_fini(&world);
        }
        printf("seeds 13 to 16, load %.1f: with backfill %.3f times the work is done\n", loads[i], gain);
        assert_true(gain > 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_arrivals_give_equal_decisions),
        cmocka_unit_test(shares_are_what_is_due),
        cmocka_unit_test(backfill_gets_more_work_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
