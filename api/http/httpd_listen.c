/* The sockets at which a server listens. */
#include "api/http/httpd_private.h"
#include "common/unix_socket.h"

#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int httpd_listen(struct httpd_server *server, evconnlistener_cb on_accept, const char *host, uint16_t port,
                 struct err *err)
{
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc)
        return err_set(err, ERR_INVALID, "listen: cannot resolve \"%s\": %s", host, gai_strerror(rc));
    server->listener = evconnlistener_new_bind(
        server->base, on_accept, server, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
        512, found->ai_addr, (int)found->ai_addrlen);
    int saved = errno;
    freeaddrinfo(found);
    if (!server->listener)
        return err_set(err, ERR_IO, "listen: cannot listen on %s:%u: %s", host, port, strerror(saved));
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof(bound);
    if (getsockname(evconnlistener_get_fd(server->listener), (struct sockaddr *)&bound, &size) == 0)
        server->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                         : ((struct sockaddr_in *)&bound)->sin_port);
    return 0;
}

int httpd_listen_unix(struct httpd_server *server, evconnlistener_cb on_accept, const char *path,
                      struct err *err)
{
    struct sockaddr_un address;
    struct stat there;
    int folder;
    if (unix_socket_address(path, &address, &folder, err) < 0)
        return -1;
    if (lstat(path, &there) == 0 && S_ISSOCK(there.st_mode))
        unlink(path);
    server->unix_listener = evconnlistener_new_bind(server->base, on_accept, server,
                                                    LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 512,
                                                    (struct sockaddr *)&address, sizeof(address));
    int rc = server->unix_listener && chmod(path, 0666) == 0
                 ? 0
                 : err_errno(err, ERR_IO, errno, "cannot listen on the unix socket \"%s\"", path);
    if (folder >= 0)
        close(folder);
    return rc;
}
