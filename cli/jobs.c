/* Submits, lists and controls jobs. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/units.h"

enum { JOBS_PAGE = 50, SUBMIT_MS = 600000 };

static int print_answer(struct cli *cli, const json_t *answer, const char *what, struct err *err)
{
    if (cli->json)
        return show_json(answer, err);
    printf("job %.0f is %s%s\n", show_num(answer, "id", 0), show_str(answer, "state"), what);
    return 0;
}

/* The first submit with new data encodes them on the server, which takes longer than other calls. */
static int post_job(struct cli *cli, const json_t *spec, json_t **answer, struct err *err)
{
    struct buf body = {.limit = (size_t)1 << 26}, response = {.limit = (size_t)1 << 26};
    char key[300];
    const char *idempotency = cli_option(cli, "--key");
    const char *headers[2] = {NULL, NULL};
    if (idempotency) {
        snprintf(key, sizeof key, "Idempotency-Key: %.250s", idempotency);
        headers[0] = key;
    }
    struct http_request request = {.method = "POST",
                                   .path = "/v1/jobs",
                                   .content_type = "application/json",
                                   .headers = headers,
                                   .response = &response,
                                   .timeout_ms = SUBMIT_MS};
    int result = json_print(spec, false, &body, err);
    if (result == 0) {
        request.body = body.data;
        request.body_bytes = body.size;
        result = http_perform(cli->http, &request, NULL, err);
    }
    if (result == 0 &&
        !(*answer = json_parse_limited(buf_str(&response), response.size, JSON_DEPTH_MAX, err)))
        result = -1;
    buf_fini(&body);
    buf_fini(&response);
    return result;
}

int submit_spec(struct cli *cli, const json_t *spec, json_t **answer, int64_t *id, struct err *err)
{
    if (post_job(cli, spec, answer, err) < 0)
        return -1;
    *id = (int64_t)show_num(*answer, "id", 0);
    return 0;
}

int command_submit(struct cli *cli, struct err *err)
{
    json_t *spec = given_spec(cli->words[0], err), *answer = NULL, *job = NULL;
    int64_t id = 0;
    int result = spec ? upload_spec_files(cli, spec, err) : -1;
    if (result == 0)
        result = submit_spec(cli, spec, &answer, &id, err);
    json_decref(spec);
    if (result < 0)
        return -1;
    if (cli_option(cli, "--wait")) {
        cli->quiet = cli->json;
        result = watch_job(cli, id, &job, err);
        if (result == 0 && cli->json)
            result = show_json(job, err);
        if (result == 0)
            result = job_verdict(cli, job, err);
    } else if (cli->json) {
        result = show_json(answer, err);
    } else {
        printf("%lld\n", (long long)id);
    }
    json_decref(answer);
    json_decref(job);
    return result;
}

int job_verdict(struct cli *cli, const json_t *job, struct err *err)
{
    const char *state = show_str(job, "state");
    if (strcmp(state, "succeeded") == 0)
        return 0;
    cli->exit_status =
        strcmp(show_str(job, "code"), "nofit") == 0 || strcmp(show_str(job, "code"), "no-fit") == 0
            ? CLI_NOFIT
            : CLI_JOB_FAILED;
    const char *why = *show_str(job, "why") ? show_str(job, "why") : show_str(job, "error");
    return err_set(err, ERR_CANCELLED, "job %.0f %s%s%s", show_num(job, "id", 0), state, *why ? ": " : "",
                   why);
}

int command_jobs(struct cli *cli, struct err *err)
{
    int64_t limit;
    char path[512], state[64] = "", after[128] = "";
    if (cli_option_i64(cli, "--limit", 1, 500, JOBS_PAGE, &limit, err) < 0)
        return -1;
    if (cli_option(cli, "--state") && http_escape(cli_option(cli, "--state"), state, sizeof state, err) < 0)
        return err_wrap(err, "--state");
    if (cli_option(cli, "--after") && http_escape(cli_option(cli, "--after"), after, sizeof after, err) < 0)
        return err_wrap(err, "--after");
    snprintf(path, sizeof path, "/v1/jobs?limit=%lld%s%s%s%s", (long long)limit, *state ? "&state=" : "",
             state, *after ? "&after=" : "", after);
    json_t *page = NULL;
    if (client_call(cli, "GET", NULL, &page, err, "%s", path) < 0)
        return -1;
    int result;
    if (cli->json) {
        result = show_json(page, err);
    } else {
        result = show_table(
            json_object_get(page, "jobs"),
            "ID:id:n NAME:name:s STATE:state:s STEP:step:n OF:steps:n LOSS:loss:n SUBMITTED:created:w "
            "WHY:why:s",
            err);
        const json_t *next = json_object_get(page, "next");
        if (json_is_integer(next))
            printf("more: --after %" JSON_INTEGER_FORMAT "\n", json_integer_value(next));
        else if (json_is_string(next))
            printf("more: --after %s\n", json_string_value(next));
    }
    json_decref(page);
    return result;
}

static void print_line(const char *label, const char *value)
{
    if (*value)
        printf("%-12s %s\n", label, value);
}

/* Prints what the specification trains, and in which dtypes. */
static void print_method(const json_t *spec)
{
    const json_t *method = json_object_get(spec, "method");
    bool full = strcmp(show_str(method, "kind"), "full") == 0;
    if (json_is_object(method))
        printf("%-12s %s, base %s, computed in %s\n", "method", show_str(method, "kind"),
               full ? "fp32" : show_str(method, "base"), show_str(json_object_get(spec, "train"), "compute"));
}

static void print_job(const json_t *job)
{
    const json_t *run = json_object_get(job, "run");
    const json_t *rank;
    size_t index;
    printf("%-12s %.0f\n", "job", show_num(job, "id", 0));
    print_line("name", show_str(job, "name"));
    print_line("state", show_str(job, "state"));
    print_line("why", show_str(job, "why"));
    print_method(json_object_get(job, "spec"));
    printf("%-12s %.0f of %.0f\n", "steps", show_num(job, "step", 0), show_num(job, "steps", 0));
    if (json_is_number(json_object_get(job, "loss")))
        printf("%-12s %.4f\n", "loss", show_num(job, "loss", 0));
    print_line("submitted", show_str(job, "created"));
    print_line("started", show_str(job, "started"));
    print_line("ended", show_str(job, "ended"));
    if (json_is_object(run))
        printf("%-12s %.0f, attempt %.0f\n", "run", show_num(run, "id", 0), show_num(run, "attempt", 0));
    json_array_foreach(json_object_get(run, "ranks"), index, rank)
        printf("  rank %-5.0f %s  %s  %s\n", show_num(rank, "rank", 0), show_str(rank, "device"),
               show_str(rank, "state"), show_str(rank, "why"));
}

int command_job(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *job = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        client_call(cli, "GET", NULL, &job, err, "/v1/jobs/%lld", (long long)id) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(job, err);
    else
        print_job(job);
    json_decref(job);
    return result;
}

int command_why(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *answer = NULL;
    warn_of_full_disk(cli);
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        client_call(cli, "GET", NULL, &answer, err, "/v1/jobs/%lld/why", (long long)id) < 0)
        return -1;
    int result = 0;
    if (cli->json)
        result = show_json(answer, err);
    else
        printf("job %lld is %s%s%s\n", (long long)id, show_str(answer, "state"),
               *show_str(answer, "why") ? ": " : "", show_str(answer, "why"));
    json_decref(answer);
    return result;
}

int command_watch(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *job = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 || watch_job(cli, id, &job, err) < 0)
        return -1;
    int result = job_verdict(cli, job, err);
    json_decref(job);
    return result;
}

int command_act(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *answer = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        client_call(cli, "POST", NULL, &answer, err, "/v1/jobs/%lld/%s", (long long)id, cli->command->name) <
            0)
        return -1;
    int result = print_answer(cli, answer, "", err);
    json_decref(answer);
    return result;
}

int command_resume(struct cli *cli, struct err *err)
{
    int64_t id, steps;
    json_t *answer = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        cli_option_i64(cli, "--steps", 1, (int64_t)1 << 40, 0, &steps, err) < 0)
        return -1;
    json_t *body = steps ? json_pack("{s:I}", "steps", (json_int_t)steps) : NULL;
    int result = client_call(cli, "POST", body, &answer, err, "/v1/jobs/%lld/resume", (long long)id);
    json_decref(body);
    if (result == 0)
        result = print_answer(cli, answer, "", err);
    json_decref(answer);
    return result;
}

int command_metrics(struct cli *cli, struct err *err)
{
    int64_t id;
    if (client_job_id(cli->words[0], &id, err) < 0)
        return -1;
    json_t *lines = client_metrics(cli, id, err), *line;
    if (!lines)
        return -1;
    size_t index;
    int result = 0;
    if (cli->json) {
        json_array_foreach(lines, index, line) result = result < 0 ? result : show_json(line, err);
    } else {
        result = show_table(
            lines,
            "STEP:step:n LOSS:loss:n NORM:grad_norm:n RATE:learning_rate:n ROWS:rows:n TOKENS:tokens:n "
            "LEARNT:labelled_tokens:n TIME:seconds:t SCALE:loss_scale:n EVAL:eval:s",
            err);
    }
    json_decref(lines);
    return result;
}
