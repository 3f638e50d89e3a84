/* Recognises a file's kind by its first bytes. People often give another file than they think (a web page
 * saved in place of a download, a Git LFS pointer in place of weights); the reader then names that kind
 * instead of the syntax error that the kind causes. */
#ifndef MOTLEY_MODEL_FILES_FILE_KIND_H
#define MOTLEY_MODEL_FILES_FILE_KIND_H

#include <stddef.h>

#include "common/err.h"

enum file_kind {
    FILE_KIND_OTHER, /* none of the following, or a file too short to tell */
    FILE_KIND_GZIP,
    FILE_KIND_ZSTD,
    FILE_KIND_XZ,
    FILE_KIND_BZIP2,
    FILE_KIND_ZIP,
    FILE_KIND_TORCH, /* a zip file that torch.save wrote */
    FILE_KIND_PICKLE,
    FILE_KIND_TAR,
    FILE_KIND_PARQUET,
    FILE_KIND_ARROW,
    FILE_KIND_NUMPY,
    FILE_KIND_HDF5,
    FILE_KIND_SQLITE,
    FILE_KIND_PDF,
    FILE_KIND_UTF16,
    FILE_KIND_LFS, /* a Git LFS pointer */
    FILE_KIND_HTML,
    FILE_KIND_GGML, /* llama.cpp's formats before GGUF */
    FILE_KIND_GGUF,
    FILE_KIND_SAFETENSORS,
    FILE_KIND_JSON_OBJECT, /* a JSON object, or lines of objects */
    FILE_KIND_JSON_ARRAY
};

enum { FILE_KIND_BYTES = 512 /* how many of a file's first bytes are looked at, at most */ };

/* Returns the kind of a file that begins with these bytes. A byte order mark and white space before JSON and
 * HTML are skipped. */
enum file_kind file_kind_of(const void *bytes, size_t size);

/* Returns the kind's name as a static text that completes "FILE is …", such as "a Parquet file". */
const char *file_kind_name(enum file_kind kind);

/* Returns advice how to get at the file's content, as a static text that follows "; ", such as "unpack it
 * (zstd -d)". It is "" for GGUF, safetensors, JSON and other, where the advice depends on what was wanted. */
const char *file_kind_advice(enum file_kind kind);

/* Checks that a file of 'size' bytes, of which these are the first, may be of the kind 'wanted'. Returns 0,
 * or ERR_CORRUPT when the file is empty or its kind is known to be another; the error says which kind and
 * what to do. */
int file_kind_expect(const void *bytes, size_t size, enum file_kind wanted, struct err *err);

#endif
