/* Tells agents and workers whom they may trust: the cluster's nodes and their present generations.
 *
 * Every agent is told the whole list when it says hello and whenever the list changes; a node that has left
 * the list is told that it was removed. `told` is the list that the agents have; it is unknown (NULL) after a
 * change of leader or a new connection to Redis.
 */
#include "scheduler/leader/scheduler_private.h"

#include <stdio.h>
#include <string.h>

#include "common/tls.h"

static json_t *list_nodes(const struct store_view *view)
{
    json_t *nodes = json_object();
    for (size_t i = 0; i < view->node_count; i++)
        json_object_set_new(nodes, view->nodes[i].name, json_integer(view->nodes[i].generation));
    return nodes;
}

static void scheduler_tell(struct scheduler *scheduler, const char *node, json_t *nodes)
{
    json_t *message = json_pack("{s:s, s:O}", "type", "nodes", "nodes", nodes);
    if (message)
        dispatch_pass(scheduler->dispatch, node, message);
    json_decref(message);
}

/* Tells each removed node once that it was removed, and drops the messages that waited for it. */
static void tell_removed(struct scheduler *scheduler, const json_t *nodes)
{
    const char *node;
    json_t *generation;
    json_t *message = json_pack("{s:s}", "type", "removed");
    json_object_foreach (scheduler->told, node, generation) {
        if (message && !json_object_get(nodes, node)) {
            dispatch_drop_node(scheduler->dispatch, node);
            dispatch_pass(scheduler->dispatch, node, message);
        }
    }
    json_decref(message);
}

void identities_leave(struct scheduler *scheduler)
{
    json_t *nodes = list_nodes(scheduler->view);
    if (nodes)
        tell_removed(scheduler, nodes);
    json_decref(nodes);
}

void identities_tell(struct scheduler *scheduler)
{
    json_t *nodes = list_nodes(scheduler->view);
    if (!nodes || !scheduler->redis_up || json_equal(nodes, scheduler->told)) {
        json_decref(nodes);
        return;
    }
    for (size_t i = 0; i < scheduler->view->node_count; i++)
        if (!scheduler->view->nodes[i].joining)
            scheduler_tell(scheduler, scheduler->view->nodes[i].name, nodes);
    json_decref(scheduler->told);
    scheduler->told = nodes;
}

void identities_hello(struct scheduler *scheduler, const char *node)
{
    if (scheduler->told)
        scheduler_tell(scheduler, node, scheduler->told);
}

void identities_forget(struct scheduler *scheduler)
{
    json_decref(scheduler->told);
    scheduler->told = NULL;
}

bool identity_is_old(const struct store_sched_node *node, const char *identity)
{
    char present[TLS_IDENTITY_SIZE], prefix[TLS_IDENTITY_SIZE];
    tls_agent_identity(node->name, node->generation, present);
    int length = snprintf(prefix, sizeof(prefix), "agent:%s:", node->name);
    return identity && strncmp(identity, prefix, (size_t)length) == 0 && strcmp(identity, present) != 0;
}
