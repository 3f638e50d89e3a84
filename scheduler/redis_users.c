/* Makes Redis's users equal to the database's nodes: one `agent-NODE` for each admitted node, and no other
 * user with that prefix.
 *
 * The users are compared with ACL LIST when Redis was reconnected, when the nodes have changed, and every 3 s
 * (CHECK_NS). A user with another password is made anew, and the user of a removed or barred node is deleted;
 * both end its connections. Redis versions word a user's rules differently, so the rules that ACL LIST shows
 * right after ACL SETUSER are the ones expected from then on.
 *
 * Redis limits only the total number of connections, so that one user could shut the others out. Therefore
 * the connections of each user are counted at each comparison, and a user with too many loses all of them;
 * its agent then reconnects with its two.
 */
#include "scheduler/leader/scheduler_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/log.h"
#include "common/redis.h"

#define CHECK_NS 3000000000u
#define COMMAND_MS 5000
/* Connections of one user: an agent has two, and the rest allows for broken connections that Redis still
 * counts. */
#define CONNECTIONS_MAX 16u

static const char prefix[] = "agent-";

static void user_answered(void *arg, const redisReply *reply, const struct err *err)
{
    struct scheduler *scheduler = arg;
    if (!reply && err->code != ERR_CANCELLED && err->code != ERR_NET) {
        log_event(LOG_LEVEL_ERROR, "redis_user", "why=\"%s\"", err->text);
        redis_users_forget(scheduler);
    }
}

/* Ignores the answer of ACL SAVE. A Redis without an ACL file cannot save its users, and need not, since the
 * users come from the database. */
static void redis_users_saved(void *arg, const redisReply *reply, const struct err *err)
{
    (void)arg;
    (void)reply;
    (void)err;
}

static void user_drop(struct scheduler *scheduler, const char *user)
{
    const char *const argv[] = {"ACL", "DELUSER", user};
    struct err ignored; /* the next comparison finds the user again */
    redis_command(scheduler->commands, COMMAND_MS, user_answered, scheduler, 3, argv, NULL, &ignored);
}

/* Deletes the streams of a node that is removed or barred: nobody would trim them any more. */
static void streams_drop(struct scheduler *scheduler, const char *node)
{
    char events[160], inbox[160];
    struct err ignored; /* on failure the streams stay; without a user they cannot grow */
    snprintf(events, sizeof(events), "motley:events:%s", node);
    snprintf(inbox, sizeof(inbox), "motley:agent:%s", node);
    const char *const argv[] = {"DEL", events, inbox};
    redis_command(scheduler->commands, COMMAND_MS, NULL, NULL, 3, argv, NULL, &ignored);
}

/* Lets a node's user read the node's inbox and write its own events, with several addresses see whether the
 * leader works with this one, and nothing else. */
static void user_set(struct scheduler *scheduler, struct node_stream *node_stream)
{
    char user[88], hash[DIGEST_HEX_SIZE + 1] = "#", inbox[104], events[104];
    struct err ignored; /* the next comparison sets the user again */
    snprintf(user, sizeof(user), "%s%s", prefix, node_stream->node);
    digest_hex(node_stream->redis_hash, sizeof(node_stream->redis_hash), hash + 1);
    snprintf(inbox, sizeof(inbox), "%%R~motley:agent:%s", node_stream->node);
    snprintf(events, sizeof(events), "%%W~%s", node_stream->stream);
    const char *const argv[] = {
        "ACL",  "SETUSER",         user,     "reset", "on",    hash,     inbox,
        events, "+xadd",           "+xread", "+ping", "+auth", "+hello", "+client|setname",
        "+get", "%R~" REDIS_BEACON};
    const size_t argc = sizeof(argv) / sizeof(argv[0]);
    const bool several = strchr(scheduler->config->redis_address, ',');
    redis_command(scheduler->commands, COMMAND_MS, user_answered, scheduler, (int)(several ? argc : argc - 2),
                  argv, NULL, &ignored);
    node_stream->user = NODE_STREAM_USER_SET;
}

static bool is_admitted(const struct node_stream *node_stream)
{
    return node_stream && node_stream->seal && !node_stream->bar;
}

/* Compares one line of ACL LIST, "user NAME rules", with its node. Returns whether the user was deleted. */
static bool user_compare(struct scheduler *scheduler, const char *name, const char *rules)
{
    struct node_stream *node_stream = node_streams_find(scheduler->node_streams, name + strlen(prefix));
    char hash[DIGEST_HEX_SIZE + 1] = "#";
    if (!is_admitted(node_stream)) {
        log_event(LOG_LEVEL_INFO, "redis_user_dropped", "user=%s", name);
        user_drop(scheduler, name);
        streams_drop(scheduler, name + strlen(prefix));
        return true;
    }
    if (node_stream->user == NODE_STREAM_USER_SET) {
        free(node_stream->user_rules);
        node_stream->user_rules = strdup(rules);
        node_stream->user = NODE_STREAM_USER_KNOWN;
    }
    node_stream->user_listed = node_stream->user == NODE_STREAM_USER_KNOWN && node_stream->user_rules &&
                               strcmp(node_stream->user_rules, rules) == 0;
    digest_hex(node_stream->redis_hash, sizeof(node_stream->redis_hash), hash + 1);
    if (node_stream->user_listed || strstr(rules, hash))
        return false;
    user_drop(scheduler, name); /* ends the connections that used another password */
    return true;
}

static bool users_compare(struct scheduler *scheduler, const redisReply *reply)
{
    bool changed = false;
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++)
        node_streams_at(scheduler->node_streams, i)->user_listed = false;
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++) {
        const redisReply *line = reply->element[i];
        char name[120] = "";
        int end = 0;
        if (line->type == REDIS_REPLY_STRING && sscanf(line->str, "user %119s %n", name, &end) == 1 &&
            end > 0 && strncmp(name, prefix, strlen(prefix)) == 0) {
            changed = user_compare(scheduler, name, line->str + end) || changed;
        }
    }
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++) {
        struct node_stream *node_stream = node_streams_at(scheduler->node_streams, i);
        if (is_admitted(node_stream) && !node_stream->user_listed) {
            user_set(scheduler, node_stream);
            changed = true;
        }
    }
    return changed;
}

static void connections_bound(struct scheduler *scheduler, struct node_stream *node_stream)
{
    char user[88], why[128];
    const char *const argv[] = {"CLIENT", "KILL", "USER", user};
    struct err ignored; /* the next count finds the connections again */
    snprintf(user, sizeof(user), "%s%s", prefix, node_stream->node);
    snprintf(why, sizeof(why), "its %u connections to Redis were ended, the limit is %u",
             node_stream->connections, CONNECTIONS_MAX);
    redis_command(scheduler->commands, COMMAND_MS, NULL, NULL, 4, argv, NULL, &ignored);
    node_stream_refuse(node_stream, clock_mono_ns(), ERR_BUSY, why);
}

/* CLIENT LIST has one line per connection: "id=7 addr=… user=agent-left …"; no value holds a space. */
static void connections_came(void *arg, const redisReply *reply, const struct err *err)
{
    struct scheduler *scheduler = arg;
    if (err->code != ERR_NONE || reply->type != REDIS_REPLY_STRING || scheduler->epoch == 0)
        return;
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++)
        node_streams_at(scheduler->node_streams, i)->connections = 0;
    for (const char *at = reply->str; (at = strstr(at, " user=agent-")) != NULL;) {
        char node[72];
        at += strlen(" user=agent-");
        snprintf(node, sizeof(node), "%.*s", (int)strcspn(at, " \r\n"), at);
        struct node_stream *node_stream = node_streams_find(scheduler->node_streams, node);
        if (node_stream)
            node_stream->connections++;
    }
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++) {
        struct node_stream *node_stream = node_streams_at(scheduler->node_streams, i);
        if (node_stream->connections > CONNECTIONS_MAX)
            connections_bound(scheduler, node_stream);
    }
}

static void list(struct scheduler *scheduler);

static void redis_users_listed(void *arg, const redisReply *reply, const struct err *err)
{
    static const char *const save[] = {"ACL", "SAVE"};
    struct scheduler *scheduler = arg;
    struct err ignored;
    scheduler->users_asked = false;
    if (err->code == ERR_CANCELLED || err->code == ERR_NET || scheduler->epoch == 0 || !scheduler->view)
        return;
    if (err->code != ERR_NONE) {
        log_event(LOG_LEVEL_ERROR, "redis_users", "why=\"%s\"", err->text);
        return;
    }
    const bool second = scheduler->users_second;
    const bool changed = users_compare(scheduler, reply);
    if (changed)
        redis_command(scheduler->commands, COMMAND_MS, redis_users_saved, NULL, 2, save, NULL, &ignored);
    /* If rules were set, the users are listed once more, to learn how Redis words these rules. */
    scheduler->users_second = changed && !second;
    if (scheduler->users_second || scheduler->users_due)
        list(scheduler);
}

static void list(struct scheduler *scheduler)
{
    static const char *const argv[] = {"ACL", "LIST"};
    static const char *const clients[] = {"CLIENT", "LIST", "TYPE", "normal"};
    struct err ignored; /* the next tick asks again */
    scheduler->users_due = false;
    scheduler->users_ns = clock_mono_ns();
    scheduler->users_asked = redis_command(scheduler->commands, COMMAND_MS, redis_users_listed, scheduler, 2,
                                           argv, NULL, &ignored) == 0;
    redis_command(scheduler->commands, COMMAND_MS, connections_came, scheduler, 4, clients, NULL, &ignored);
}

void redis_users_check(struct scheduler *scheduler)
{
    if (scheduler->users_asked) {
        scheduler->users_due = true;
    } else if (scheduler->redis_up && scheduler->epoch != 0 && scheduler->view) {
        scheduler->users_second = false;
        list(scheduler);
    }
}

void redis_users_tick(struct scheduler *scheduler, uint64_t now_ns)
{
    if (now_ns - scheduler->users_ns > CHECK_NS)
        redis_users_check(scheduler);
}

void redis_users_forget(struct scheduler *scheduler)
{
    for (size_t i = 0; i < node_streams_count(scheduler->node_streams); i++)
        node_streams_at(scheduler->node_streams, i)->user = NODE_STREAM_USER_UNKNOWN;
}
