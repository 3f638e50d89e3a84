/* motley-supervisor HOME keeps the services of HOME/run/services.json running until SIGTERM. `motley up`
 * starts it. With --join it gives agents that wait for one a join token and ends; the supervisor starts that.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "common/usage.h"
#include "local/join.h"
#include "local/local.h"

int main(int argc, char **argv)
{
    struct err err = {0};
    static const char usage[] = "usage: motley-supervisor HOME (an absolute path); `motley up` starts it\n";
    if (usage_answered(argc, argv, usage))
        return 0;
    const bool join = argc == 3 && strcmp(argv[2], "--join") == 0;
    if ((argc != 2 && !join) || argv[1][0] != '/') {
        fputs(usage, stderr);
        return 2;
    }
    if ((join ? local_join(argv[1], &err) : local_supervise(argv[1], &err)) < 0) {
        log_event(LOG_LEVEL_ERROR, join ? "join_failed" : "supervisor_ended", "error=\"%s\"", err.text);
        return 1;
    }
    return 0;
}
