/* `motley profile`: exports measured profiles from a cluster, and imports them into another. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "profiles/profiles.h"

enum { PROFILE_FILE_BYTES_MAX = 64 << 20 };

static int profile_told(struct cli *cli, const char *path, const json_t *document, struct err *err)
{
    size_t profiles = json_array_size(json_object_get(document, "profiles"));
    size_t devices = json_array_size(json_object_get(document, "devices"));
    size_t links = json_array_size(json_object_get(document, "links"));
    if (!cli->json) {
        printf("%zu profile%s of %zu device%s and %zu link%s %s in %s\n", profiles, profiles == 1 ? "" : "s",
               devices, devices == 1 ? "" : "s", links, links == 1 ? "" : "s",
               profiles + links == 1 ? "is" : "are", path);
        return 0;
    }
    json_t *line = json_pack("{s:s, s:I, s:I, s:I}", "file", path, "profiles", (json_int_t)profiles,
                             "devices", (json_int_t)devices, "links", (json_int_t)links);
    int result = line ? show_json(line, err) : err_set(err, ERR_NOMEM, "out of memory");
    json_decref(line);
    return result;
}

static int profile_export(struct cli *cli, struct err *err)
{
    json_t *devices = NULL, *measured = NULL, *document = NULL;
    struct buf text = {.limit = PROFILE_FILE_BYTES_MAX};
    const char *path = cli_option(cli, "--out");
    char when[32];
    int result = client_list(cli, "/v1/devices", "devices", &devices, err);
    if (result == 0)
        result = client_list(cli, "/v1/profiles", "profiles", &measured, err);
    if (result == 0) {
        document =
            profiles_make(json_object_get(devices, "devices"), json_object_get(measured, "profiles"),
                          json_object_get(measured, "links"), cli->address,
                          clock_rfc3339(clock_wall_us(), when), cli->words + 1, cli->word_count - 1, err);
        result = document ? json_print(document, false, &text, err) : -1;
    }
    if (result == 0 && path)
        result = file_write_atomic(path, text.data, text.size, 0644, err) < 0
                     ? -1
                     : profile_told(cli, path, document, err);
    else if (result == 0 && (fwrite(text.data, 1, text.size, stdout) != text.size || putchar('\n') == EOF))
        result = err_set(err, ERR_IO, "could not write the output");
    buf_fini(&text);
    json_decref(document);
    json_decref(devices);
    json_decref(measured);
    return result;
}

static int profile_import(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    if (cli->word_count != 2)
        return err_set(err, ERR_INVALID, "usage: motley profile import FILE");
    json_t *document = given_document(cli->words[1], err);
    if (!document)
        return -1;
    int result = profiles_check(document, err) < 0 ? err_wrap(err, "%s", cli->words[1]) : 0;
    if (result == 0 && json_array_size(json_object_get(document, "profiles")) == 0)
        result = err_set(err, ERR_INVALID, "%s: profiles: there is none", cli->words[1]);
    if (result < 0)
        (void)given_wrong(err);
    if (result == 0)
        result = client_call(cli, "POST", document, &answer, err, "/v1/profiles");
    if (result == 0 && cli->json)
        result = show_json(answer, err);
    else if (result == 0)
        printf("%.0f profiles are stored as imported; what is measured here goes before them\n",
               show_num(answer, "imported", 0));
    json_decref(answer);
    json_decref(document);
    return result;
}

int command_profile(struct cli *cli, struct err *err)
{
    if (strcmp(cli->words[0], "export") == 0)
        return profile_export(cli, err);
    if (strcmp(cli->words[0], "import") == 0)
        return profile_import(cli, err);
    return err_set(err, ERR_INVALID,
                   "usage: motley profile export [--out FILE] [DEVICE…], or motley profile "
                   "import FILE");
}
