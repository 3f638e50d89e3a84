/* What a file is, by its first bytes: people give a file that is something else than they think (a page in
 * the place of a download, a pointer in the place of weights), and a reader should say that, not what it
 * stumbles over. */
#ifndef MOTLEY_MODEL_FILES_FILE_KIND_H
#define MOTLEY_MODEL_FILES_FILE_KIND_H

#include <stddef.h>

#include "common/err.h"

enum file_kind {
    FILE_KIND_OTHER, /* none of the following; also a file too short to tell */
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
    FILE_KIND_JSON_OBJECT, /* or lines of them */
    FILE_KIND_JSON_ARRAY
};

enum { FILE_KIND_BYTES = 512 /* more than these are not looked at */ };

/* Of a file's first bytes. A byte order mark and white space before JSON and HTML are passed over. */
enum file_kind file_kind_of(const void *bytes, size_t size);

/* What it is, to stand behind "is ": "a Parquet file". Static. */
const char *file_kind_name(enum file_kind kind);

/* What to do to have what is in it, to stand behind "; ": "unpack it (zstd -d)". Static; "" where that
 * depends on what was wanted (GGUF, safetensors, JSON, other). */
const char *file_kind_advice(enum file_kind kind);

/* Where a file of the kind 'wanted' is to be read from these first bytes of one of 'size' bytes: 0, or
 * ERR_CORRUPT saying that it is empty, or what it is and what to do, when that can be told. */
int file_kind_expect(const void *bytes, size_t size, enum file_kind wanted, struct err *err);

#endif
