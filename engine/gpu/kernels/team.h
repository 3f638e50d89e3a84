/* A team is the threads that share a row: a warp, or a whole block. All its threads get the same sums and
 * maxima, whose order depends only on the team's size and the warp size.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_TEAM_H
#define MOTLEY_ENGINE_GPU_KERNELS_TEAM_H

#ifdef GPU_KERNELS

/* Doubles of shared memory for a team of `threads`: one per warp. */
#define TEAM_SHARED(threads) ((threads) / 32)

struct team {
    uint32_t rank, size, warps; /* number of this thread in the team, and the team's threads and warps */
    double *shared;             /* shared memory of a team that is a block. Do not compare it with 0 to see
                                   whether the team is a warp: on cards, shared memory may have address 0 */
};

FUNCTION struct team team_warp(void)
{
    struct team team;
    team.rank = lane();
    team.size = warp_size();
    team.warps = 1;
    team.shared = 0;
    return team;
}

FUNCTION struct team team_block(uint32_t threads, double *shared)
{
    struct team team;
    team.rank = thread();
    team.size = threads;
    team.warps = threads / warp_size();
    team.shared = shared;
    return team;
}

/* Number of this warp among those of all blocks, and their total number; blocks have `threads` threads. */
FUNCTION uint64_t team_warp_index(uint32_t threads)
{
    return (uint64_t)block_x() * (threads / warp_size()) + warp();
}

FUNCTION uint64_t team_warp_count(uint32_t threads)
{
    return (uint64_t)blocks_x() * (threads / warp_size());
}

/* Shares each warp's value with all threads of the block. */
FUNCTION void team_share(struct team team, double v)
{
    barrier();
    if (lane() == 0)
        PUT(team.shared, warp(), v);
    barrier();
}

FUNCTION float team_sum(struct team team, float v)
{
    float total = 0.0f;
    v = warp_sum(v);
    if (team.warps == 1)
        return v;
    team_share(team, (double)v);
    for (uint32_t i = 0; i < team.warps; i++)
        total += (float)GET(team.shared, i);
    return total;
}

FUNCTION double team_sum_wide(struct team team, double v)
{
    double total = 0.0;
    v = warp_sum_wide(v);
    if (team.warps == 1)
        return v;
    team_share(team, v);
    for (uint32_t i = 0; i < team.warps; i++)
        total += GET(team.shared, i);
    return total;
}

FUNCTION float team_max(struct team team, float v)
{
    v = warp_max(v);
    if (team.warps == 1)
        return v;
    team_share(team, (double)v);
    for (uint32_t i = 0; i < team.warps; i++)
        v = math_max(v, (float)GET(team.shared, i));
    return v;
}

#endif
#endif
