/* `motley backup` and `motley restore`: a server's whole in a folder, and a server made of it. */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "local/backup.h"

static void backup_tell(void *arg, const char *what)
{
    const struct cli *cli = arg;
    if (!cli->json) {
        printf("  %s\n", what);
        fflush(stdout);
    }
}

/* Reads what both commands take. The paths have room for PATH_MAX bytes. */
static int backup_given_read(struct cli *cli, struct local_backup *given, char *folder, char *config,
                             struct err *err)
{
    const char *file = cli_option(cli, "--config");
    *given = (struct local_backup){
        .home = cli->home, .folder = folder, .progress = backup_tell, .progress_arg = cli};
    if (local_home(cli->words[0], folder, err) < 0) /* makes the path absolute */
        return -1;
    if (file && !realpath(file, config))
        return err_errno(err, ERR_INVALID, errno, "could not open the configuration %s", file);
    given->config = file ? config : NULL;
    return 0;
}

int command_backup(struct cli *cli, struct err *err)
{
    char folder[LOCAL_HOME_BYTES], config[PATH_MAX], shown[32];
    char *with[CLI_REPEATS_MAX] = {NULL};
    struct local_backup given;
    json_t *answer = NULL;
    unsigned count = 0;
    int result = backup_given_read(cli, &given, folder, config, err);
    for (const char *path; result == 0 && (path = cli_option_nth(cli, "--with", count));)
        if (count == CLI_REPEATS_MAX)
            result = err_set(err, ERR_TOO_BIG, "more than %d times --with", CLI_REPEATS_MAX);
        else if (!(with[count] = realpath(path, NULL)))
            result = err_errno(err, ERR_INVALID, errno, "could not open %s", path);
        else
            count++;
    given.with = (const char *const *)with;
    given.with_count = count;
    given.without_models = cli_option(cli, "--without-models") != NULL;
    if (result == 0)
        answer = local_backup(&given, err);
    for (unsigned i = 0; i < count; i++)
        free(with[i]);
    if (!answer)
        return -1;
    size_t i;
    json_t *missing;
    json_array_foreach (json_object_get(answer, "missing"), i, missing)
        fprintf(stderr, "motley: warning: a file that the database names is not in the backup: %s\n",
                show_str(missing, "why"));
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("%s holds the server: its database, %lld files of %s, keys and tokens. Let nobody else read "
               "it.\n",
               folder, (long long)show_num(answer, "files", 0),
               units_bytes(shown, (uint64_t)show_num(answer, "bytes", 0)));
    json_decref(answer);
    return result;
}

int command_restore(struct cli *cli, struct err *err)
{
    char folder[LOCAL_HOME_BYTES], config[PATH_MAX];
    struct local_backup given;
    if (backup_given_read(cli, &given, folder, config, err) < 0)
        return -1;
    json_t *list = local_restore(&given, err);
    if (!list)
        return -1;
    int result = cli->json ? show_json(json_object_get(list, "database"), err) : 0;
    json_decref(list);
    if (cli->json)
        return result;
    if (given.config)
        printf("the database and the folder of files are filled: start the schedulers and the apis\n");
    else
        printf("%s is a server again: motley up --home %s\n", cli->home, cli->home);
    return 0;
}
