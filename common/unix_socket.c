#include "common/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/file.h"

int unix_socket_address(const char *path, struct sockaddr_un *address, int *folder, struct err *err)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    *folder = -1;
    const size_t size = strlen(path);
    if (size < sizeof(address->sun_path)) {
        memcpy(address->sun_path, path, size + 1);
        return 0;
    }
    char parent[PATH_MAX];
    const char *name = strrchr(path, '/');
    if (!name) {
        return err_set(err, ERR_TOO_BIG, "the name of a socket has at most %zu bytes: \"%.120s\"",
                       sizeof(address->sun_path) - 1, path);
    }
    if (file_path(parent, sizeof(parent), err, "%.*s/", (int)(name - path), path) < 0)
        return -1;
    *folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*folder < 0)
        return err_errno(err, ERR_IO, errno, "could not open the folder \"%.400s\" of a socket", parent);
    const int length =
        snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d%s", *folder, name);
    if (length < 0 || (size_t)length >= sizeof(address->sun_path)) {
        close(*folder);
        *folder = -1;
        return err_set(err, ERR_TOO_BIG, "the name of the socket \"%.80s\" is too long", name + 1);
    }
    return 0;
}
