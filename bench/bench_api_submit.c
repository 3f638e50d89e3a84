/* Measures committed submits per second over HTTP, from 16 connections of this single-threaded client to a
 * real motley-api with a private PostgreSQL at its default durability (fsync and synchronous_commit on). Then
 * it measures a page of 50 among these jobs.
 *
 *     bench_api_submit [SECONDS [MODEL FOLDER [JOBS]]]       default: 10, tests/data/golden/llama, 100000
 *
 * JOBS is how many jobs there are at least when the page is measured; 0: it is not. Every job has its own
 * name. A submit counts when its 201 answer has been read. Client, api and database share the machine's
 * cores; the time that each of them computes is said per submit, since it varies less than the rate when
 * others use the machine. Exit status 1 if a claim does not hold: 5,000 submits/s, p99 < 25 ms, a page < 20
 * ms.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "common/digest.h"
#include "common/http.h"
#include "tests/support/services.h"

enum { CONNECTIONS = 16, REQUEST_BYTES = 2048, ANSWER_BYTES = 4096, LATENCIES_MAX = 4000000, PAGES = 200 };

struct lane {
    int fd;
    char request[REQUEST_BYTES];
    size_t request_bytes, sent;
    char answer[ANSWER_BYTES];
    size_t got;
    uint64_t begun_ns;
};

struct load {
    const char *host;
    uint16_t port;
    char token[65];
    char train[80];
    struct lane lanes[CONNECTIONS];
    int epoll;
    uint64_t next, done;
    uint32_t *latency_us;
    size_t latency_count;
};

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "bench_api_submit: %s: %s\n", what, why);
    exit(2);
}

static void check(int rc, const char *what, const struct err *err)
{
    if (rc < 0)
        stop(what, err->text);
}

static void lane_fill(struct load *load, struct lane *lane)
{
    char body[1024];
    int size = snprintf(
        body, sizeof(body),
        "{\"name\":\"bench-%llu\",\"model\":\"bench\",\"data\":{\"train\":\"%s\",\"format\":\"tokens\"},"
        "\"train\":{\"batch_rows\":2,\"steps\":3,\"learning_rate\":1e-3}}",
        (unsigned long long)load->next++, load->train);
    lane->request_bytes =
        (size_t)snprintf(lane->request, sizeof(lane->request),
                         "POST /v1/jobs HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n"
                         "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                         load->token, size, body);
    lane->sent = lane->got = 0;
    lane->begun_ns = clock_mono_ns();
}

static void lane_send(struct lane *lane)
{
    while (lane->sent < lane->request_bytes) {
        ssize_t n =
            send(lane->fd, lane->request + lane->sent, lane->request_bytes - lane->sent, MSG_NOSIGNAL);
        if (n < 0)
            stop("send", strerror(errno));
        lane->sent += (size_t)n;
    }
}

/* Reads from the connection; true when the answer is complete. */
static bool lane_read(struct lane *lane)
{
    ssize_t n = recv(lane->fd, lane->answer + lane->got, sizeof(lane->answer) - 1 - lane->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return false;
    if (n <= 0)
        stop("recv", n ? strerror(errno) : "closed by the server");
    lane->got += (size_t)n;
    lane->answer[lane->got] = '\0';
    const char *end = strstr(lane->answer, "\r\n\r\n");
    const char *length = strstr(lane->answer, "Content-Length: ");
    if (!end || !length)
        return false;
    if (lane->got < (size_t)(end + 4 - lane->answer) + strtoul(length + 16, NULL, 10))
        return false;
    if (strncmp(lane->answer, "HTTP/1.1 201", 12) != 0)
        stop("an answer", lane->answer);
    return true;
}

static int dial(const struct load *load)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(load->port)};
    inet_pton(AF_INET, load->host, &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        stop("connect", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static void load_open(struct load *load)
{
    load->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < CONNECTIONS; i++) {
        load->lanes[i].fd = dial(load);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &load->lanes[i]};
        epoll_ctl(load->epoll, EPOLL_CTL_ADD, load->lanes[i].fd, &event);
    }
}

/* Submits until the time is over or, with `count` > 0, until `count` more are done. Returns seconds. */
static double load_run(struct load *load, double seconds, uint64_t count)
{
    uint64_t begun = clock_mono_ns(), until = begun + (uint64_t)(seconds * 1e9), target = load->done + count;
    int under_way = CONNECTIONS;
    for (int i = 0; i < CONNECTIONS; i++) {
        lane_fill(load, &load->lanes[i]);
        lane_send(&load->lanes[i]);
    }
    while (under_way) {
        struct epoll_event events[CONNECTIONS];
        int n = epoll_wait(load->epoll, events, CONNECTIONS, 10000);
        if (n <= 0)
            stop("an answer", "did not come within 10 s");
        for (int i = 0; i < n; i++) {
            struct lane *lane = events[i].data.ptr;
            if (!lane_read(lane))
                continue;
            uint64_t now = clock_mono_ns();
            if (load->latency_count < LATENCIES_MAX)
                load->latency_us[load->latency_count++] = (uint32_t)((now - lane->begun_ns) / 1000);
            load->done++;
            if (count ? load->done + (uint64_t)under_way > target : now >= until) {
                under_way--;
                continue;
            }
            lane_fill(load, lane);
            lane_send(lane);
        }
    }
    return (double)(clock_mono_ns() - begun) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(uint32_t *values, size_t count, double share)
{
    qsort(values, count, sizeof(*values), compare);
    return count ? values[(size_t)((double)(count - 1) * share)] * 1e-3 : 0;
}

/* ---- the service ---- */

struct bench_service {
    struct test_dir dir;
    struct test_postgres postgres;
    char config[160], address_file[160], program[256];
    pid_t pid;
};

static bool listening(void *arg)
{
    struct bench_service *service = arg;
    int status;
    if (waitpid(service->pid, &status, WNOHANG) == service->pid)
        stop("motley-api", "ended at start");
    return access(service->address_file, R_OK) == 0;
}

static void service_start(struct bench_service *service, struct load *load, char address[64])
{
    struct err err = {0};
    char text[1024], token_file[160], log[160];
    test_dir_make(&service->dir);
    test_postgres_start(&service->postgres, service->dir.path);
    snprintf(service->address_file, sizeof(service->address_file), "%s/address", service->dir.path);
    snprintf(service->config, sizeof(service->config), "%s/api.json", service->dir.path);
    snprintf(token_file, sizeof(token_file), "%s/token", service->dir.path);
    snprintf(log, sizeof(log), "%s/api.log", service->dir.path);
    int n =
        snprintf(text, sizeof(text),
                 "{\"listen\": \"127.0.0.1:0\", \"address_file\": \"%s\", \"postgres\": \"%s\", \"blobs\": "
                 "\"%s/blobs\"}",
                 service->address_file, service->postgres.conninfo, service->dir.path);
    check(file_write_atomic(service->config, text, (size_t)n, 0600, &err), "configuration", &err);
    check(random_hex(load->token, 32, &err), "token", &err);
    check(file_write_atomic(token_file, load->token, 64, 0600, &err), "token", &err);
    check(process_sibling("motley-api", service->program, sizeof(service->program), &err), "motley-api",
          &err);
    const char *migrate[] = {service->program, "--config", service->config, "--migrate", "--admin-token-file",
                             token_file,       NULL};
    int status = 0;
    pid_t pid = test_spawn(migrate, log, NULL);
    if (waitpid(pid, &status, 0) != pid || status)
        stop("motley-api --migrate", log);
    const char *serve[] = {service->program, "--config", service->config, NULL};
    service->pid = test_spawn(serve, log, NULL);
    if (!test_wait_until(listening, service, 15000))
        stop("motley-api", "does not listen");
    struct buf buf = {.limit = 64};
    check(file_read_all(service->address_file, 63, &buf, &err), "address", &err);
    snprintf(address, 64, "%.*s", (int)strcspn(buf_str(&buf), "\n"), buf_str(&buf));
    buf_fini(&buf);
}

/* Seconds of processor time that a process took if it is `pid`, with those of its children that have ended,
 * or a child of `pid`; else 0. */
static double process_cpu_s(const char *process, pid_t pid)
{
    char path[64];
    struct buf buf = {.limit = 1024};
    struct err err;
    int parent = 0;
    unsigned long took[4] = {0}; /* user, system; of ended children: user, system */
    snprintf(path, sizeof(path), "/proc/%.20s/stat", process);
    if (file_read_all(path, 1023, &buf, &err) == 0) {
        const char *rest = strrchr(buf_str(&buf), ')');
        if (rest)
            sscanf(rest, ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %lu %lu", &parent, &took[0],
                   &took[1], &took[2], &took[3]);
    }
    buf_fini(&buf);
    if (strtol(process, NULL, 10) == pid)
        took[0] += took[2] + took[3];
    else if (parent != pid)
        return 0;
    return (double)(took[0] + took[1]) / (double)sysconf(_SC_CLK_TCK);
}

/* The processor time of a server and of its children so far. */
static double server_cpu_s(pid_t pid)
{
    double sum = 0;
    DIR *folder = opendir("/proc");
    if (!folder)
        stop("/proc", strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));)
        if (*entry->d_name >= '1' && *entry->d_name <= '9')
            sum += process_cpu_s(entry->d_name, pid);
    closedir(folder);
    return sum;
}

static void service_stop(struct bench_service *service)
{
    struct err err = {0};
    process_stop(service->pid, 0, SIGTERM, 10000, &err);
    test_postgres_stop(&service->postgres);
    test_dir_remove(&service->dir);
}

static void prepare(struct load *load, struct http *http, const char *model)
{
    static const char rows[] =
        "{\"ids\":[1,2,3,4],\"labels\":[-100,2,3,4]}\n{\"ids\":[5,2,3,4],\"labels\":[-100,2,3,4]}\n";
    struct err err = {0};
    char hex[65], path[96];
    char *real = realpath(model, NULL);
    if (!real)
        stop(model, strerror(errno));
    json_t *body = json_pack("{s:s, s:s}", "name", "bench", "path", real);
    check(http_json(http, "POST", "/v1/models", body, 30000, NULL, &err), "model", &err);
    json_decref(body);
    free(real);
    check(digest_sha256_hex(rows, sizeof(rows) - 1, hex, &err), "rows", &err);
    snprintf(path, sizeof(path), "/v1/blobs/%s", hex);
    struct http_request put = {.method = "PUT", .path = path, .body = rows, .body_bytes = sizeof(rows) - 1};
    check(http_perform(http, &put, NULL, &err), "rows", &err);
    snprintf(load->train, sizeof(load->train), "sha256:%s", hex);
}

static double pages_ms(struct http *http, uint64_t jobs)
{
    static uint32_t latency_us[PAGES];
    struct err err = {0};
    char path[96];
    for (int i = 0; i < PAGES; i++) {
        snprintf(path, sizeof(path), "/v1/jobs?limit=50&after=%llu",
                 (unsigned long long)(1 + jobs * (uint64_t)(i + 1) / PAGES));
        json_t *page = NULL;
        uint64_t begun = clock_mono_ns();
        check(http_json(http, "GET", path, NULL, 10000, &page, &err), "page", &err);
        latency_us[i] = (uint32_t)((clock_mono_ns() - begun) / 1000);
        if (i && json_array_size(json_object_get(page, "jobs")) != 50)
            stop("page", "it does not have 50 jobs");
        json_decref(page);
    }
    return percentile_ms(latency_us, PAGES, 0.99);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 10;
    const char *model = argc > 2 ? argv[2] : "tests/data/golden/llama";
    uint64_t jobs_paged = argc > 3 ? strtoul(argv[3], NULL, 10) : 100000;
    struct load *load = calloc(1, sizeof(*load));
    struct bench_service *service = calloc(1, sizeof(*service));
    char address[64], url[96];
    struct err err = {0};
    if (!load || !service || !(load->latency_us = malloc(LATENCIES_MAX * sizeof(*load->latency_us))))
        stop("memory", "none left");
    service_start(service, load, address);
    snprintf(url, sizeof(url), "http://%s", address);
    struct http_options options = {.url = url, .bearer = load->token};
    struct http *http = http_create(&options, &err);
    check(http ? 0 : -1, "client", &err);
    prepare(load, http, model);
    char *colon = strrchr(address, ':');
    load->port = (uint16_t)strtoul(colon + 1, NULL, 10);
    *colon = '\0';
    load->host = address;
    load_open(load);
    load_run(load, 1, 0); /* warm-up of caches, connections and prepared statements */
    load->latency_count = 0;
    const uint64_t before = load->done;
    double client_s = (double)clock() / CLOCKS_PER_SEC, api_s = server_cpu_s(service->pid),
           postgres_s = server_cpu_s(service->postgres.pid);
    const double took = load_run(load, seconds, 0), count = (double)(load->done - before);
    client_s = (double)clock() / CLOCKS_PER_SEC - client_s;
    api_s = server_cpu_s(service->pid) - api_s;
    postgres_s = server_cpu_s(service->postgres.pid) - postgres_s;
    const double rate = count / took;
    double p50 = percentile_ms(load->latency_us, load->latency_count, 0.5);
    double p99 = percentile_ms(load->latency_us, load->latency_count, 0.99);
    double worst = percentile_ms(load->latency_us, load->latency_count, 1);
    if (load->done < jobs_paged)
        load_run(load, 0, jobs_paged - load->done);
    double page = jobs_paged ? pages_ms(http, load->done) : 0;
    printf("submits      %.0f /s over %.1f s from %d connections (%.0f committed)\n", rate, took, CONNECTIONS,
           count);
    printf("computing    a submit: client %.0f us, api %.0f us, PostgreSQL %.0f us\n", client_s / count * 1e6,
           api_s / count * 1e6, postgres_s / count * 1e6);
    printf("latency      p50 %.2f ms, p99 %.2f ms, worst %.2f ms\n", p50, p99, worst);
    printf("page of 50   p99 %.2f ms among %llu jobs\n", page, (unsigned long long)load->done);
    http_destroy(http);
    service_stop(service);
    bool holds = rate >= 5000 && p99 < 25 && page < 20;
    printf("%s: 5,000 submits/s, p99 < 25 ms, page < 20 ms\n", holds ? "holds" : "DOES NOT HOLD");
    free(load->latency_us);
    free(load);
    free(service);
    return holds ? 0 : 1;
}
