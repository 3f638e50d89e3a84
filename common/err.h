/* Errors: a caller-owned object, filled by whoever fails.
 *
 * A fallible function returns 0 or -1 (or a pointer or NULL) and fills 'err'. The code drives HTTP status and
 * retry; the text is one sentence that names the thing, the place and the limit. 'err' is never NULL.
 * Thread: any; one object belongs to one thread.
 */
#ifndef MOTLEY_COMMON_ERR_H
#define MOTLEY_COMMON_ERR_H

#include <stdarg.h>

enum err_code {
    ERR_NONE,
    ERR_INVALID,      /* the request or file is wrong: the caller's fault */
    ERR_NOT_FOUND,    /* the named thing does not exist */
    ERR_AUTH,         /* nobody known is asking */
    ERR_DENIED,       /* known, but not allowed */
    ERR_CONFLICT,     /* the thing is in another state, or exists already */
    ERR_TOO_BIG,      /* over a stated limit */
    ERR_NOFIT,        /* no placement fits the devices */
    ERR_NOMEM,        /* memory, of a host or of a device's limit */
    ERR_IO,           /* files and disks */
    ERR_NET,          /* the connection failed; whether the request was done may be unknown */
    ERR_TIMEOUT,      /* a deadline passed */
    ERR_PEER,         /* the peer broke the protocol or is not who it must be */
    ERR_CORRUPT,      /* stored or received bytes are not what they must be */
    ERR_UNSUPPORTED,  /* understood, and not done here */
    ERR_STALE,        /* an older epoch or attempt */
    ERR_CANCELLED,    /* somebody asked to stop */
    ERR_NOT_FINITE,   /* a number overflowed or became NaN */
    ERR_BUSY,         /* a bounded queue is full: try again later */
    ERR_INTERNAL,     /* our own mistake */
    ERR_DEVICE_LOST,  /* a device or its context is gone */
    ERR_DEVICE_FAULT, /* a device computes wrongly: a failing launch, an uncorrectable memory error */
    ERR_CODE_COUNT
};

struct err {
    enum err_code code;
    char text[512]; /* NUL-terminated, cut when longer */
};

/* Set code and text. Returns -1, keeps errno. The arguments may point into err->text. */
int err_set(struct err *err, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As err_set, with ": strerror(error_number)" behind the text. */
int err_errno(struct err *err, enum err_code code, int error_number, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Prefix the text with "what: ", keeping the code. Returns -1, keeps errno. */
int err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Code ERR_NONE, text "". */
void err_clear(struct err *err);

/* "invalid", "not-found", … stable names that travel in documents. Never NULL. */
const char *err_code_name(enum err_code code);

/* The code of a name; ERR_INTERNAL for an unknown one. */
enum err_code err_code_from_name(const char *name);

/* The HTTP status that tells 'code' (ERR_NONE: 200), and the code that a status tells. */
int err_http_status(enum err_code code);
enum err_code err_code_from_http(int status);

#endif
