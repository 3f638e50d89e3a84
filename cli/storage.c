/* What lies on the server's disk: who has how much there, and jobs that are removed. */
#include "cli/cli.h"

#include <stdio.h>

#include "common/units.h"

int command_remove(struct cli *cli, struct err *err)
{
    for (unsigned n = 0; n < cli->word_count; n++) {
        char freed[32];
        int64_t id;
        json_t *answer = NULL;
        if (client_job_id(cli->words[n], &id, err) < 0 ||
            client_call(cli, "DELETE", NULL, &answer, err, "/v1/jobs/%lld", (long long)id) < 0)
            return -1;
        if (cli->json && show_json(answer, err) < 0) {
            json_decref(answer);
            return -1;
        }
        if (!cli->json)
            printf("job %lld is removed; %s of files are needed by nothing else, and go within minutes\n",
                   (long long)id, units_bytes(freed, (uint64_t)show_num(answer, "bytes", 0)));
        json_decref(answer);
    }
    return 0;
}

int command_storage(struct cli *cli, struct err *err)
{
    char disk[32], left[32], database[32];
    size_t index;
    json_t *answer = NULL, *group;
    if (client_call(cli, "GET", NULL, &answer, err, "/v1/storage") < 0)
        return -1;
    json_array_foreach (json_object_get(answer, "users"), index, group)
        if (!cli->json && show_num(group, "kept_bytes_max", 0) == 0)
            json_object_del(group, "kept_bytes_max"); /* any number */
    int result = cli->json
                     ? show_json(answer, err)
                     : show_table(json_object_get(answer, "users"),
                                  "USER:user:s JOBS-ENDED:jobs:n CHECKPOINTS:checkpoints_bytes:b "
                                  "RESULTS:results_bytes:b UPLOADS:uploads_bytes:b MAY-KEEP:kept_bytes_max:b",
                                  err);
    json_array_foreach (result == 0 && !cli->json ? json_object_get(answer, "groups") : NULL, index, group)
        printf("group %s: checkpoints and results go %s after a job has ended\n", show_str(group, "group"),
               units_seconds(left, show_num(group, "retention_s", 0)));
    if (result == 0 && !cli->json)
        printf("%s of %s are free on the disk of these files; the database has %s\n",
               units_bytes(left, (uint64_t)show_num(answer, "free_bytes", 0)),
               units_bytes(disk, (uint64_t)show_num(answer, "disk_bytes", 0)),
               units_bytes(database, (uint64_t)show_num(answer, "database_bytes", 0)));
    json_decref(answer);
    return result;
}
