/* motley-supervisor HOME keeps the services of HOME/run/services.json running until SIGTERM. `motley up`
 * starts it. */
#include <stdio.h>

#include "common/log.h"
#include "local/local.h"

int main(int argc, char **argv)
{
    struct err err = {0};
    if (argc != 2 || argv[1][0] != '/') {
        fprintf(stderr, "usage: motley-supervisor HOME (an absolute path); `motley up` starts it\n");
        return 2;
    }
    if (local_supervise(argv[1], &err) < 0) {
        log_event(LOG_LEVEL_ERROR, "supervisor_ended", "error=\"%s\"", err.text);
        return 1;
    }
    return 0;
}
