#include "common/release.h"

#include <stdio.h>
#include <string.h>

/* Raise the number, by one, in a release whose programs say something that those of the release before would
 * not understand, or need something that those do not say. It is a marked text of fixed length, so that a
 * test makes a program of another release from a copy of this one, by writing another number into the file
 * (tests/system/test_releases.py): nothing that a program is told changes it. Volatile, since the compiler is
 * not to read it. */
static const volatile char protocol_mark[] = "motley-protocol=0001";

const char motley_version[] = MOTLEY_VERSION;

unsigned release_protocol(void)
{
    unsigned protocol = 0;
    for (size_t i = sizeof("motley-protocol=") - 1; i + 1 < sizeof(protocol_mark); i++)
        protocol = protocol * 10 + (unsigned)(protocol_mark[i] - '0');
    return protocol;
}

char *release_text(char out[RELEASE_TEXT_BYTES])
{
    snprintf(out, RELEASE_TEXT_BYTES, "%s/%u", motley_version, release_protocol());
    return out;
}

int release_check(const char *who, const char *release, unsigned protocol, struct err *err)
{
    const unsigned ours = release_protocol();
    if ((protocol > ours ? protocol - ours : ours - protocol) <= 1)
        return 0;
    return err_set(
        err, ERR_RELEASE,
        "%s is of release %.32s (protocol %u) and this program of release %s (protocol %u), which works with "
        "the protocol before and after its own alone: upgrade the older of the two",
        who, release, protocol, motley_version, ours);
}

int release_check_text(const char *who, const char *text, struct err *err)
{
    char release[33];
    unsigned protocol = 0;
    int end = 0;
    if (sscanf(text, "%32[0-9A-Za-z.+~-]/%u%n", release, &protocol, &end) != 2 || text[end] != '\0')
        return 0;
    return release_check(who, release, protocol, err);
}
