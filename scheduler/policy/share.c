/* Ranks accounts by Slurm's Fair Tree: siblings are compared by weight over charged use, from the root down.
 */
#include <math.h>
#include <stdlib.h>

#include "scheduler/policy/policy_private.h"

static int check_accounts(const struct policy_account *accounts, size_t count, struct err *err)
{
    if (count >= POLICY_NONE)
        return err_set(err, ERR_INVALID, "%zu accounts: at most %d", count, POLICY_NONE - 1);
    for (size_t i = 0; i < count; i++) {
        const bool root = i == 0;
        if (root != (accounts[i].parent == POLICY_NONE) || (!root && accounts[i].parent >= i))
            return err_set(err, ERR_INVALID, "account %zu: its parent %u does not stand before it", i,
                           (unsigned)accounts[i].parent);
        if (!(accounts[i].weight > 0) || !isfinite(accounts[i].weight))
            return err_set(err, ERR_INVALID, "account %zu: its weight is not above 0", i);
        if (!(accounts[i].decayed >= 0) || !isfinite(accounts[i].decayed))
            return err_set(err, ERR_INVALID, "account %zu: its use is below 0", i);
    }
    return 0;
}

int share_tree_init(struct share_tree *tree, const struct policy_account *accounts, size_t count,
                    struct err *err)
{
    *tree = (struct share_tree){.count = count, .accounts = accounts};
    if (check_accounts(accounts, count, err) < 0)
        return -1;
    char *memory = calloc(count + 1, 2 * sizeof(int64_t) + 2 * sizeof(uint32_t) + sizeof(uint16_t));
    if (!memory)
        return err_set(err, ERR_NOMEM, "no memory for %zu accounts", count);
    tree->memory = memory;
    tree->ratio = (double *)memory;
    tree->front_us = (int64_t *)(tree->ratio + count + 1);
    tree->heap_begin = (uint32_t *)(tree->front_us + count + 1);
    tree->heap_count = tree->heap_begin + count + 1;
    tree->heap = (uint16_t *)(tree->heap_count + count + 1);
    for (size_t i = 0; i < count; i++)
        tree->ratio[i] = accounts[i].decayed;
    for (size_t i = count; i-- > 1;) {
        tree->ratio[accounts[i].parent] += tree->ratio[i];
        tree->heap_count[accounts[i].parent]++;
    }
    for (size_t i = 0; i < count; i++)
        tree->heap_begin[i + 1] = tree->heap_begin[i] + tree->heap_count[i];
    for (size_t i = 0; i < count; i++)
        tree->ratio[i] /= accounts[i].weight;
    return 0;
}

void share_tree_fini(struct share_tree *tree)
{
    free(tree->memory);
    *tree = (struct share_tree){0};
}

void share_tree_charge(struct share_tree *tree, uint16_t account, double seconds)
{
    for (uint16_t i = account; i != POLICY_NONE; i = tree->accounts[i].parent)
        tree->ratio[i] += seconds / tree->accounts[i].weight;
}

/* Whether account a goes before its sibling b: the one with less use over weight goes first, then the one
 * whose next job has waited longer. */
static bool goes_before(const struct share_tree *tree, uint16_t a, uint16_t b)
{
    if (tree->ratio[a] != tree->ratio[b])
        return tree->ratio[a] < tree->ratio[b];
    if (tree->front_us[a] != tree->front_us[b])
        return tree->front_us[a] < tree->front_us[b];
    return a < b;
}

static void sift_down(struct share_tree *tree, uint16_t parent, size_t at)
{
    uint16_t *heap = tree->heap + tree->heap_begin[parent];
    const size_t count = tree->heap_count[parent];
    for (;;) {
        size_t first = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (goes_before(tree, heap[child], heap[first]))
                first = child;
        if (first == at)
            return;
        const uint16_t moved = heap[at];
        heap[at] = heap[first];
        heap[first] = moved;
        at = first;
    }
}

void share_tree_fill(struct share_tree *tree, const bool *has_jobs)
{
    for (size_t i = 0; i < tree->count; i++)
        tree->heap_count[i] = 0;
    /* Children have larger indices than their parents, so each account's heap is complete before the account
     * enters its parent's heap. */
    for (size_t i = tree->count; i-- > 0;) {
        const uint32_t children = tree->heap_count[i];
        for (size_t at = children / 2; at-- > 0;)
            sift_down(tree, (uint16_t)i, at);
        if (children > 0)
            tree->front_us[i] = tree->front_us[tree->heap[tree->heap_begin[i]]];
        if (i > 0 && (children > 0 || has_jobs[i])) {
            const uint16_t parent = tree->accounts[i].parent;
            tree->heap[tree->heap_begin[parent] + tree->heap_count[parent]++] = (uint16_t)i;
        }
    }
}

uint16_t share_tree_top(const struct share_tree *tree)
{
    uint16_t at = 0;
    if (tree->count == 0 || tree->heap_count[0] == 0)
        return POLICY_NONE;
    while (tree->heap_count[at] > 0)
        at = tree->heap[tree->heap_begin[at]];
    return at;
}

void share_tree_take(struct share_tree *tree, double seconds, bool more, int64_t front_us)
{
    uint16_t at = share_tree_top(tree);
    share_tree_charge(tree, at, seconds);
    tree->front_us[at] = front_us;
    while (at != 0) {
        const uint16_t parent = tree->accounts[at].parent;
        uint16_t *heap = tree->heap + tree->heap_begin[parent];
        if (!more)
            heap[0] = heap[--tree->heap_count[parent]];
        sift_down(tree, parent, 0);
        more = tree->heap_count[parent] > 0;
        if (more)
            tree->front_us[parent] = tree->front_us[heap[0]];
        at = parent;
    }
}

int policy_rank(const struct policy_account *accounts, size_t count, uint32_t *rank, struct err *err)
{
    struct share_tree tree;
    bool *leaf = calloc(count + 1, sizeof(*leaf));
    int rc = leaf ? share_tree_init(&tree, accounts, count, err)
                  : err_set(err, ERR_NOMEM, "no memory for %zu accounts", count);
    if (rc == 0) {
        uint16_t top;
        uint32_t place = 0;
        for (size_t i = 0; i < count; i++) {
            leaf[i] = tree.heap_begin[i + 1] == tree.heap_begin[i];
            rank[i] = UINT32_MAX;
        }
        if (count == 1)
            rank[0] = 0;
        share_tree_fill(&tree, leaf);
        while ((top = share_tree_top(&tree)) != POLICY_NONE) {
            rank[top] = place++;
            share_tree_take(&tree, 0, false, 0);
        }
    }
    if (leaf)
        share_tree_fini(&tree);
    free(leaf);
    return rc;
}
