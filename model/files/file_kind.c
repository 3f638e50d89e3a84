/* The first bytes are compared with a table of magics; kinds without a fixed magic have a function. */
#include "model/files/file_kind.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

static const struct kind {
    enum file_kind kind;
    size_t offset, size;
    const char *magic; /* NULL: the kind has a function instead */
    const char *name, *advice;
} kinds[] = {
    {FILE_KIND_GZIP, 0, 2, "\x1f\x8b", "a gzip file", "unpack it (gzip -d)"},
    {FILE_KIND_ZSTD, 0, 4, "\x28\xb5\x2f\xfd", "a zstd file", "unpack it (zstd -d)"},
    {FILE_KIND_XZ, 0, 6,
     "\xfd"
     "7zXZ\0",
     "an xz file", "unpack it (xz -d)"},
    {FILE_KIND_BZIP2, 0, 3, "BZh", "a bzip2 file", "unpack it (bzip2 -d)"},
    {FILE_KIND_ZIP, 0, 4, "PK\x03\x04", "a zip file", "unpack it (unzip)"},
    {FILE_KIND_TORCH, 0, 0, NULL, "a file of torch.save",
     "save it as safetensors (safetensors.torch.save_file)"},
    {FILE_KIND_PICKLE, 0, 0, NULL, "a pickle", "save it as safetensors or JSON: a pickle may run anything"},
    {FILE_KIND_TAR, 257, 5, "ustar", "a tar archive", "unpack it (tar -x)"},
    {FILE_KIND_PARQUET, 0, 4, "PAR1", "a Parquet file",
     "convert it to JSON lines, as with pandas.read_parquet(FILE).to_json(OUT, orient=\"records\", "
     "lines=True)"},
    {FILE_KIND_ARROW, 0, 6, "ARROW1", "an Arrow file",
     "convert it to JSON lines, as with datasets.Dataset.from_file(FILE).to_json(OUT)"},
    {FILE_KIND_NUMPY, 0, 6, "\x93NUMPY", "a NumPy file", "convert it to JSON lines or safetensors"},
    {FILE_KIND_HDF5, 0, 8, "\x89HDF\r\n\x1a\n", "an HDF5 file", "convert it to JSON lines or safetensors"},
    {FILE_KIND_SQLITE, 0, 15, "SQLite format 3", "an SQLite database", "export it as JSON lines"},
    {FILE_KIND_PDF, 0, 5, "%PDF-", "a PDF file", "give its text as JSON lines"},
    {FILE_KIND_UTF16, 0, 0, NULL, "a text in UTF-16", "save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"},
    {FILE_KIND_LFS, 0, 24, "version https://git-lfs.", "a Git LFS pointer, not the file it points to",
     "fetch the file (git lfs pull, or hf download)"},
    {FILE_KIND_HTML, 0, 0, NULL, "a web page (HTML), not the file behind a link", "download the file itself"},
    {FILE_KIND_GGML, 0, 4, "tjgg", "a GGML file of before GGUF",
     "convert it (llama.cpp's old converters), or take a GGUF"},
    {FILE_KIND_GGML, 0, 4, "lmgg", "a GGML file of before GGUF",
     "convert it (llama.cpp's old converters), or take a GGUF"},
    {FILE_KIND_GGUF, 0, 4, "GGUF", "a GGUF file", ""},
    {FILE_KIND_SAFETENSORS, 0, 0, NULL, "a safetensors file", ""},
    {FILE_KIND_JSON_OBJECT, 0, 0, NULL, "JSON", ""},
    {FILE_KIND_JSON_ARRAY, 0, 0, NULL, "a JSON array", ""},
};

enum { KIND_COUNT = sizeof(kinds) / sizeof(kinds[0]) };

static const struct kind *kind_find(enum file_kind kind)
{
    for (int i = 0; i < KIND_COUNT; i++)
        if (kinds[i].kind == kind)
            return &kinds[i];
    return NULL;
}

/* Recognises a zip file that torch.save wrote: its first entry is NAME/data.pkl, stored without
 * compression. */
static bool is_torch(const char *bytes, size_t size)
{
    return size > 30 && memmem(bytes + 30, size - 30 < 128 ? size - 30 : 128, "/data.pkl", 9);
}

/* Recognises pickle protocols 2 to 5, which begin with the byte 0x80 and their number. */
static bool is_pickle(const uint8_t *bytes, size_t size)
{
    return size >= 3 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5;
}

/* Recognises UTF-16 by its byte order mark, or by ASCII characters in every other byte. */
static bool is_utf16(const uint8_t *bytes, size_t size)
{
    if (size < 4) {
        return size >= 2 &&
               ((bytes[0] == 0xff && bytes[1] == 0xfe) || (bytes[0] == 0xfe && bytes[1] == 0xff));
    }
    return (bytes[0] == 0xff && bytes[1] == 0xfe) || (bytes[0] == 0xfe && bytes[1] == 0xff) ||
           (bytes[0] != 0 && bytes[1] == 0 && bytes[2] != 0 && bytes[3] == 0 && bytes[0] < 0x80) ||
           (bytes[0] == 0 && bytes[1] != 0 && bytes[2] == 0 && bytes[3] != 0 && bytes[1] < 0x80);
}

/* Recognises a safetensors file, which begins with the length of a JSON object, little-endian, and the
 * object. */
static bool is_safetensors(const uint8_t *bytes, size_t size)
{
    uint64_t length = 0;
    for (int i = 7; i >= 0 && size > 8; i--)
        length = length << 8 | bytes[i];
    return size > 8 && bytes[8] == '{' && length >= 2 && length <= UINT64_C(100) << 20;
}

static enum file_kind text_kind(const char *text, size_t size)
{
    static const char *const pages[] = {"<!doctype html", "<html", "<head", "<?xml"};
    size_t at = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < size && strchr(" \t\r\n", text[at]) && text[at] != '\0')
        at++;
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        if (size - at >= strlen(pages[i]) && strncasecmp(text + at, pages[i], strlen(pages[i])) == 0)
            return FILE_KIND_HTML;
    return at == size        ? FILE_KIND_OTHER
           : text[at] == '{' ? FILE_KIND_JSON_OBJECT
           : text[at] == '[' ? FILE_KIND_JSON_ARRAY
                             : FILE_KIND_OTHER;
}

enum file_kind file_kind_of(const void *bytes, size_t size)
{
    size = size < FILE_KIND_BYTES ? size : FILE_KIND_BYTES;
    for (int i = 0; i < KIND_COUNT; i++) {
        const struct kind *k = &kinds[i];
        if (k->magic && size >= k->offset + k->size &&
            memcmp((const char *)bytes + k->offset, k->magic, k->size) == 0) {
            return k->kind == FILE_KIND_ZIP && is_torch(bytes, size) ? FILE_KIND_TORCH : k->kind;
        }
    }
    return is_safetensors(bytes, size) ? FILE_KIND_SAFETENSORS
           : is_pickle(bytes, size)    ? FILE_KIND_PICKLE
           : is_utf16(bytes, size)     ? FILE_KIND_UTF16
                                       : text_kind(bytes, size);
}

const char *file_kind_name(enum file_kind kind)
{
    const struct kind *k = kind_find(kind);
    return k ? k->name : "something else";
}

const char *file_kind_advice(enum file_kind kind)
{
    const struct kind *k = kind_find(kind);
    return k ? k->advice : "";
}

int file_kind_expect(const void *bytes, size_t size, enum file_kind wanted, struct err *err)
{
    const enum file_kind kind = file_kind_of(bytes, size);
    if (size == 0)
        return err_set(err, ERR_CORRUPT, "the file is empty; fetch it again");
    if (kind == wanted || kind == FILE_KIND_OTHER)
        return 0;
    const char *advice = file_kind_advice(kind);
    return err_set(err, ERR_CORRUPT, "the file is %s, and %s is needed here%s%s", file_kind_name(kind),
                   file_kind_name(wanted), advice[0] != '\0' ? "; " : "", advice);
}
