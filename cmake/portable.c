/* Linked into the programs of tools/tarball.sh alone. libevent, as Debian 12 builds it, asks glibc for
 * arc4random and arc4random_buf, which came with glibc 2.36; all else that these programs ask for is in 2.34.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

void arc4random_buf(void *out, size_t size);
uint32_t arc4random(void);

void arc4random_buf(void *out, size_t size)
{
    unsigned char *at = out;
    while (size > 0) {
        const ssize_t got = getrandom(at, size, 0);
        if (got < 0 && errno != EINTR)
            abort(); /* as glibc does: there is no way to report it, and no randomness to go on with */
        at += got > 0 ? got : 0;
        size -= got > 0 ? (size_t)got : 0;
    }
}

uint32_t arc4random(void)
{
    uint32_t value;
    arc4random_buf(&value, sizeof(value));
    return value;
}
