/* Unix sockets at paths of any length.
 *
 * The kernel takes at most 107 bytes of a socket's path. A longer path is reached through its folder: the
 * folder is opened and the socket is named as /proc/self/fd/N/NAME, which bind and connect resolve as any
 * path.
 */
#ifndef MOTLEY_COMMON_UNIX_SOCKET_H
#define MOTLEY_COMMON_UNIX_SOCKET_H

#include <sys/un.h>

#include "common/err.h"

/* Fills *address so that bind or connect reaches the socket at 'path'. *folder becomes -1, or a descriptor
 * that the caller closes after bind or connect. Returns 0, or -1: ERR_IO when the folder cannot be opened,
 * ERR_TOO_BIG when even the socket's name in its folder is too long. */
int unix_socket_address(const char *path, struct sockaddr_un *address, int *folder, struct err *err);

#endif
