/* Tests motley-signer as a process: what it signs, whom it answers, and what no caller can make it do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/frame.h"
#include "support/cluster.h"
#include "support/services.h"

struct world {
    struct test_dir dir;
    struct test_cluster cluster, other;
    char key_file[300], other_key[300], socket[300];
    pid_t signer;
};

static pid_t start(struct world *world, const char *key_file)
{
    char program[600], log[200];
    const char *bin = getenv("MOTLEY_BIN");
    snprintf(program, sizeof(program), "%s/motley-signer", bin ? bin : "build/bin");
    snprintf(log, sizeof(log), "%s/signer.log", world->dir.path);
    const char *argv[] = {program,    "--ca",        world->cluster.ca_file, "--key", key_file,
                          "--socket", world->socket, "--lifetime",           "60s",   NULL};
    return test_spawn(argv, log, NULL);
}

/* Connects and returns the socket, or -1. */
static int connect_to(const char *path)
{
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    snprintf(where.sun_path, sizeof(where.sun_path), "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&where, sizeof(where)) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool is_there(void *arg)
{
    int fd = connect_to(arg);
    close(fd);
    return fd >= 0;
}

static int world_up(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    struct err err;
    signal(SIGPIPE, SIG_IGN);
    test_dir_make(&world->dir);
    test_cluster_make(&world->cluster, world->dir.path, "ours");
    test_cluster_make(&world->other, world->dir.path, "theirs");
    snprintf(world->key_file, sizeof(world->key_file), "%s/ca.key", world->dir.path);
    snprintf(world->other_key, sizeof(world->other_key), "%s/other.key", world->dir.path);
    snprintf(world->socket, sizeof(world->socket), "%s/signer.sock", world->dir.path);
    test_cluster_check(file_write_atomic(world->key_file, world->cluster.ca_key.data,
                                         world->cluster.ca_key.size, 0600, &err),
                       &err);
    test_cluster_check(
        file_write_atomic(world->other_key, world->other.ca_key.data, world->other.ca_key.size, 0600, &err),
        &err);
    world->signer = start(world, world->key_file);
    assert_true(test_wait_until(is_there, world->socket, 10000));
    *state = world;
    return 0;
}

static int world_down(void **state)
{
    struct world *world = *state;
    int status = 0;
    if (world->signer > 0) {
        kill(world->signer, SIGTERM);
        waitpid(world->signer, &status, 0);
    }
    test_cluster_fini(&world->cluster);
    test_cluster_fini(&world->other);
    test_dir_remove(&world->dir);
    free(world);
    return status; /* the exit status of an orderly end */
}

static int dial(const struct world *world)
{
    int fd = connect_to(world->socket);
    assert_true(fd >= 0);
    return fd;
}

static uint64_t soon(void)
{
    return clock_mono_ns() + 10000000000u;
}

/* Sends and frees a request. Returns the answer (new), or NULL when the connection was closed without one. */
static json_t *ask(const struct world *world, json_t *request)
{
    struct err err;
    json_t *answer = NULL;
    int fd = dial(world);
    assert_int_equal(frame_send(fd, request, soon(), &err), 0);
    if (frame_recv(fd, &frame_limits_default, soon(), &answer, &err) < 0)
        answer = NULL;
    close(fd);
    json_decref(request);
    return answer;
}

static char *request_for(const char *identity)
{
    struct err err;
    struct buf key, csr;
    buf_init(&key, 65536);
    buf_init(&csr, 65536);
    test_cluster_check(tls_request_create(identity, &key, &csr, &err), &err);
    char *text = strdup(buf_str(&csr));
    buf_fini(&key);
    buf_fini(&csr);
    return text;
}

/* Makes a request for agent:left that also asks for a host name. */
static char *request_with_host(void)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509_REQ *request = X509_REQ_new();
    X509_NAME_add_entry_by_txt(X509_REQ_get_subject_name(request), "CN", MBSTRING_UTF8,
                               (const unsigned char *)"agent:left", -1, -1, 0);
    STACK_OF(X509_EXTENSION) *wishes = sk_X509_EXTENSION_new_null();
    sk_X509_EXTENSION_push(wishes, X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "DNS:api.example"));
    X509_REQ_add_extensions(request, wishes);
    sk_X509_EXTENSION_pop_free(wishes, X509_EXTENSION_free);
    X509_REQ_set_pubkey(request, key);
    X509_REQ_sign(request, key, EVP_sha256());
    BIO *bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509_REQ(bio, request);
    char *data;
    long size = BIO_get_mem_data(bio, &data);
    char *text = strndup(data, (size_t)size);
    BIO_free(bio);
    X509_REQ_free(request);
    EVP_PKEY_free(key);
    return text;
}

static json_t *wish(const char *kind, const char *node, json_int_t generation, const char *csr)
{
    return json_pack("{s:s, s:s, s:I, s:s}", "kind", kind, "node", node, "generation", generation, "csr",
                     csr);
}

static void check_works(const struct world *world)
{
    char *csr = request_for("agent:left");
    json_t *answer = ask(world, wish("agent", "left", 3, csr));
    assert_non_null(json_string_value(json_object_get(answer, "certificate")));
    json_decref(answer);
    free(csr);
}

static void an_agent_gets_its_identity_no_host_and_the_lifetime_set(void **state)
{
    struct world *world = *state;
    struct err err;
    char identity[TLS_IDENTITY_SIZE];
    int64_t issued_s, ends_s;
    char *csr = request_for("agent:left");
    json_t *answer = ask(world, wish("agent", "left", 3, csr));
    const char *pem = json_string_value(json_object_get(answer, "certificate"));
    assert_non_null(pem);
    test_cluster_check(tls_certificate_read(pem, identity, &issued_s, &ends_s, &err), &err);
    assert_string_equal(identity, "agent:left:3");
    assert_int_equal(ends_s - issued_s, 60);
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    assert_int_equal(sk_GENERAL_NAME_num(names), 1);
    assert_int_equal(sk_GENERAL_NAME_value(names, 0)->type, GEN_URI);
    assert_int_equal(X509_check_ca(cert), 0);
    GENERAL_NAMES_free(names);
    X509_free(cert);
    BIO_free(bio);
    json_decref(answer);
    free(csr);
}

static void anything_else_is_refused_in_words(void **state)
{
    struct world *world = *state;
    char *good = request_for("agent:left"), *server = request_for("server:api"), *host = request_with_host();
    json_t *more = wish("agent", "left", 1, good);
    json_object_set_new(more, "hosts", json_string("api.example"));
    const struct {
        json_t *request;
        const char *word;
    } cases[] = {
        {wish("server", "left", 1, good), "only agents"},
        {wish("agent", "Left", 1, good), "names of a-z"},
        {wish("agent", "left:9", 1, good), "names of a-z"},
        {wish("agent", "right", 1, good), "agent:left"},
        {wish("agent", "left", 0, good), "generation"},
        {wish("agent", "left", 1, server), "server:api"},
        {wish("agent", "left", 1, host), "host names"},
        {wish("agent", "left", 1, "nonsense"), "request"},
        {more, "hosts"},
        {json_string("no object"), ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *answer = ask(world, cases[i].request);
        const char *text = json_string_value(json_object_get(answer, "error"));
        assert_null(json_object_get(answer, "certificate"));
        if (!text || !strstr(text, cases[i].word))
            fail_msg("case %zu: %s", i, text);
        json_decref(answer);
    }
    check_works(world);
    free(good);
    free(server);
    free(host);
}

static void a_caller_that_floods_or_stalls_costs_nobody_else_more_than_its_deadline(void **state)
{
    struct world *world = *state;
    int stalls = dial(world);
    assert_int_equal(write(stalls, "\0\0", 2), 2);
    int floods = dial(world);
    char bytes[65536];
    memset(bytes, 0xff, sizeof(bytes));
    ssize_t ignored = write(floods, bytes, sizeof(bytes)); /* claims a length of 4 GiB */
    (void)ignored;
    uint64_t begin_ns = clock_mono_ns();
    check_works(world);
    assert_true(clock_mono_ns() - begin_ns < 5000000000u);
    close(stalls);
    close(floods);
}

static long status_of(pid_t pid, const char *key)
{
    char path[64], line[256];
    long value = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtol(line + strlen(key), NULL, 10);
    if (file)
        fclose(file);
    return value;
}

static pid_t child_of(pid_t parent)
{
    pid_t found = 0;
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && status_of(pid, "PPid:") == parent)
            found = pid;
    }
    closedir(folder);
    return found;
}

static void the_key_lies_in_locked_memory_of_a_sandboxed_process(void **state)
{
    struct world *world = *state;
    pid_t keeper = child_of(world->signer);
    assert_true(keeper > 0);
    assert_int_equal(status_of(keeper, "Seccomp:"), 2);
    assert_int_equal(status_of(keeper, "NoNewPrivs:"), 1);
    assert_true(status_of(keeper, "VmLck:") > 0);
    struct stat info;
    assert_int_equal(stat(world->socket, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0660);
}

static void another_user_gets_no_answer(void **state)
{
    struct world *world = *state;
    if (geteuid() != 0) {
        print_message("SKIP: not root, nobody else to ask as\n");
        skip();
    }
    chmod(world->socket, 0666); /* as a careless administrator may do */
    pid_t child = fork();
    if (child == 0) {
        struct err err;
        json_t *answer = NULL;
        int fd = setgid(65534) < 0 || setuid(65534) < 0 ? -1 : dial(world);
        char *csr = request_for("agent:left");
        frame_send(fd, wish("agent", "left", 1, csr), soon(), &err);
        _exit(frame_recv(fd, &frame_limits_default, soon(), &answer, &err) < 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    chmod(world->socket, 0660);
    check_works(world);
}

static void without_its_key_the_front_ends_and_a_wrong_key_never_starts(void **state)
{
    struct world *world = *state;
    int status = 0;
    kill(child_of(world->signer), SIGKILL);
    assert_int_equal(waitpid(world->signer, &status, 0), world->signer);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    world->signer = 0;
    pid_t wrong = start(world, world->other_key);
    waitpid(wrong, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_false(file_exists(world->socket));
    world->signer = start(world, world->key_file);
    assert_true(test_wait_until(is_there, world->socket, 10000));
    check_works(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_agent_gets_its_identity_no_host_and_the_lifetime_set),
        cmocka_unit_test(anything_else_is_refused_in_words),
        cmocka_unit_test(a_caller_that_floods_or_stalls_costs_nobody_else_more_than_its_deadline),
        cmocka_unit_test(the_key_lies_in_locked_memory_of_a_sandboxed_process),
        cmocka_unit_test(another_user_gets_no_answer),
        cmocka_unit_test(without_its_key_the_front_ends_and_a_wrong_key_never_starts),
    };
    return cmocka_run_group_tests(tests, world_up, world_down);
}
