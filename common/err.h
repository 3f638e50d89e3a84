/* Errors: an object that the caller owns and a failing function fills.
 *
 * A fallible function returns 0 or -1 (or a pointer or NULL) and fills 'err'. The code decides the HTTP
 * status and whether a request is repeated; the text is one sentence that names the thing, the place and the
 * limit. 'err' is never NULL. Thread: any; one object belongs to one thread.
 */
#ifndef MOTLEY_COMMON_ERR_H
#define MOTLEY_COMMON_ERR_H

#include <stdarg.h>

enum err_code {
    ERR_NONE,
    ERR_INVALID,      /* the request or file is wrong: the caller's fault */
    ERR_NOT_FOUND,    /* the named thing does not exist */
    ERR_AUTH,         /* the caller is not authenticated */
    ERR_DENIED,       /* the caller is authenticated but not allowed */
    ERR_CONFLICT,     /* the thing is in another state, or exists already */
    ERR_TOO_BIG,      /* a stated limit is exceeded */
    ERR_NOFIT,        /* no placement fits the devices */
    ERR_NOMEM,        /* memory of a host, or within a device's limit, is short */
    ERR_IO,           /* a file or disk operation failed */
    ERR_NET,          /* the connection failed; whether the request was done may be unknown */
    ERR_TIMEOUT,      /* a deadline passed */
    ERR_PEER,         /* the peer broke the protocol or is not who it must be */
    ERR_CORRUPT,      /* stored or received bytes are not what they must be */
    ERR_UNSUPPORTED,  /* the request is understood but not supported */
    ERR_STALE,        /* the request belongs to an older epoch or attempt */
    ERR_CANCELLED,    /* the operation was asked to stop */
    ERR_NOT_FINITE,   /* a number overflowed or became NaN */
    ERR_BUSY,         /* a bounded queue is full: try again later */
    ERR_INTERNAL,     /* a bug of ours */
    ERR_DEVICE_LOST,  /* a device or its context is gone */
    ERR_DEVICE_FAULT, /* a device computes wrongly: a failing launch, an uncorrectable memory error */
    ERR_NODE,         /* a node cannot start a worker: a library, its disk or its way to the api is missing */
    ERR_RELEASE, /* the other program, or the database, is of a release that does not work with this one */
    ERR_LIMIT,   /* the caller or a group of theirs has as much as they may: time helps, a change does not */
    ERR_CODE_COUNT
};

struct err {
    enum err_code code;
    char text[512]; /* NUL-terminated, cut when longer */
};

/* Sets code and text. Returns -1, keeps errno. The arguments may point into err->text. */
int err_set(struct err *err, enum err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Sets the error as err_set does, and appends ": " and strerror(error_number) to the text. */
int err_errno(struct err *err, enum err_code code, int error_number, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Prefixes the text with "what: " and keeps the code. Returns -1, keeps errno. */
int err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets the code ERR_NONE and the text "". */
void err_clear(struct err *err);

/* Returns the stable name of a code, as used in documents: "invalid", "not-found", … Never NULL. */
const char *err_code_name(enum err_code code);

/* Returns the code of a name; ERR_INTERNAL for an unknown one. */
enum err_code err_code_from_name(const char *name);

/* Return the HTTP status for a code (ERR_NONE: 200), and the code for a status. */
int err_http_status(enum err_code code);
enum err_code err_code_from_http(int status);

#endif
