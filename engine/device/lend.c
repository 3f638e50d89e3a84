#include "engine/device/lend.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_SECONDS = 5, NOTHING = -1 };

struct lender {
    int socket;
    pthread_t thread;
    struct loan words; /* with the file NOTHING, which ends the thread */
};

static socklen_t name_address(const uint8_t name[8], struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, 8);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 8);
}

union file_message { /* room for the control message with one descriptor, aligned as it must be */
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* Answers one request. A borrower that does not wait for its answer loses it. */
static void lend_answer(const struct lender *lender, int32_t file, const struct sockaddr_un *to,
                        socklen_t size)
{
    union file_message control = {
        .head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(file))}};
    struct iovec part = {.iov_base = &file, .iov_len = sizeof(file)};
    struct msghdr message = {.msg_name = (void *)(uintptr_t)to,
                             .msg_namelen = size,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    if (fcntl(file, F_GET_SEALS) < 0) /* only memory files have seals */
        return;
    memcpy(CMSG_DATA(&control.head), &file, sizeof(file));
    (void)sendmsg(lender->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *lender_main(void *arg)
{
    const struct lender *lender = arg;
    for (;;) {
        struct loan asked = {.file = NOTHING};
        struct sockaddr_un from;
        socklen_t size = sizeof(from);
        const ssize_t got =
            recvfrom(lender->socket, &asked, sizeof(asked), 0, (struct sockaddr *)&from, &size);
        if (got < 0 && errno != EINTR)
            return NULL;
        if (got != sizeof(asked) || memcmp(asked.secret, lender->words.secret, sizeof(asked.secret)) != 0)
            continue;
        if (asked.file == NOTHING)
            return NULL;
        lend_answer(lender, asked.file, &from, size);
    }
}

struct lender *lender_create(void)
{
    struct sockaddr_un address;
    struct lender *lender = calloc(1, sizeof(*lender));
    if (!lender)
        return NULL;
    lender->words.file = NOTHING;
    lender->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (lender->socket >= 0 &&
        getrandom(lender->words.name, sizeof(lender->words.name), 0) == sizeof(lender->words.name) &&
        getrandom(lender->words.secret, sizeof(lender->words.secret), 0) == sizeof(lender->words.secret) &&
        bind(lender->socket, (struct sockaddr *)&address, name_address(lender->words.name, &address)) == 0 &&
        pthread_create(&lender->thread, NULL, lender_main, lender) == 0)
        return lender;
    if (lender->socket >= 0)
        close(lender->socket);
    free(lender);
    return NULL;
}

/* Opens a socket whose datagrams go to the lender, which may answer; -1. */
static int lender_reach(const uint8_t name[8])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    int file = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    /* an address without a name makes the kernel choose one */
    if (file >= 0 && bind(file, (struct sockaddr *)&address, sizeof(address.sun_family)) == 0 &&
        setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
        setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
        connect(file, (struct sockaddr *)&address, name_address(name, &address)) == 0)
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

void lender_destroy(struct lender *lender)
{
    if (!lender)
        return;
    const int end = lender_reach(lender->words.name);
    if (end < 0 || send(end, &lender->words, sizeof(lender->words), MSG_NOSIGNAL) != sizeof(lender->words))
        pthread_cancel(lender->thread); /* recvfrom is where it ends */
    if (end >= 0)
        close(end);
    pthread_join(lender->thread, NULL);
    close(lender->socket);
    free(lender);
}

void lender_lend(const struct lender *lender, int file, struct loan *loan)
{
    *loan = lender->words;
    loan->file = file;
}

int loan_take(const struct loan *loan)
{
    union file_message control;
    int32_t file = -1, number = -1;
    struct iovec part = {.iov_base = &number, .iov_len = sizeof(number)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    const int lender = lender_reach(loan->name);
    if (lender < 0)
        return -1;
    if (send(lender, loan, sizeof(*loan), MSG_NOSIGNAL) == sizeof(*loan) &&
        recvmsg(lender, &message, MSG_CMSG_CLOEXEC) == sizeof(number)) {
        const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
            head->cmsg_len == CMSG_LEN(sizeof(file)))
            memcpy(&file, CMSG_DATA(head), sizeof(file));
    }
    close(lender);
    return file;
}
