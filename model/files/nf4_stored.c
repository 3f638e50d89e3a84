/* Saved NF4 is read in pieces of 256 blocks, which one nested scale covers. */
#include "model/files/nf4_stored.h"

#include <math.h>
#include <string.h>

#include "model/files/dynamic_map.h"
#include "model/files/hub_json.h"
#include "model/files/nf4.h"

enum { STATE_BYTES_MAX = 4096, PIECE_BLOCKS = NF4_NESTED_BLOCK, PIECE_VALUES = PIECE_BLOCKS * NF4_BLOCK };

const char *const nf4_suffixes[NF4_PARTS] = {[NF4_ABSMAX] = ".absmax",
                                             [NF4_NESTED] = ".nested_absmax",
                                             [NF4_MAP] = ".quant_map",
                                             [NF4_NESTED_MAP] = ".nested_quant_map",
                                             [NF4_STATE] = ".quant_state.bitsandbytes__nf4"};

static uint64_t nf4_stored_values_of(const struct nf4_places *places)
{
    return places->rows * places->columns;
}

int nf4_stored_shape(struct nf4_places *places, uint64_t rows, uint64_t columns, struct err *err)
{
    const struct nf4_place *parts = places->parts;
    bool nested = nf4_stored_nested(places);
    uint64_t values = rows * columns, blocks = nf4_blocks(values);
    const struct {
        const char *name;
        uint64_t has, wants;
    } sizes[] = {
        {"codes", places->codes.size, nf4_code_bytes(values)},
        {"absmax", parts[NF4_ABSMAX].size, nested ? blocks : 4 * blocks},
        {"nested_absmax", parts[NF4_NESTED].size, nested ? 4 * (nf4_scales(values) - 1) : 0},
        {"quant_map", parts[NF4_MAP].size, sizeof(nf4_table)},
        {"nested_quant_map", parts[NF4_NESTED_MAP].size, nested ? 4 * DYNAMIC_MAP_SIZE : 0},
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].has != sizes[i].wants)
            return err_set(err, ERR_UNSUPPORTED,
                           "NF4: %llu bytes of %s, where a matrix of %llu x %llu in blocks of %d has %llu",
                           (unsigned long long)sizes[i].has, sizes[i].name, (unsigned long long)rows,
                           (unsigned long long)columns, NF4_BLOCK, (unsigned long long)sizes[i].wants);
    if (parts[NF4_STATE].size > STATE_BYTES_MAX)
        return err_set(err, ERR_TOO_BIG, "NF4: a quant_state of %llu bytes, at most %d",
                       (unsigned long long)parts[NF4_STATE].size, STATE_BYTES_MAX);
    places->rows = rows;
    places->columns = columns;
    return 0;
}

static int nf4_stored_part_read(struct model_source *source, const struct nf4_place *place, uint64_t at,
                                uint64_t size, void *dst, struct err *err)
{
    return model_source_read(source, place->file, place->offset + at, (size_t)size, dst, err);
}

/* Checks that the saved tables equal those that we compute with. */
static int maps_check(struct model_source *source, const struct nf4_places *places, struct err *err)
{
    float map[DYNAMIC_MAP_SIZE], want[DYNAMIC_MAP_SIZE];
    if (nf4_stored_part_read(source, &places->parts[NF4_MAP], 0, sizeof(nf4_table), map, err) < 0)
        return -1;
    if (memcmp(map, nf4_table, sizeof(nf4_table)) != 0)
        return err_set(err, ERR_UNSUPPORTED, "NF4: quant_map is not the table of NF4");
    if (!nf4_stored_nested(places))
        return 0;
    if (nf4_stored_part_read(source, &places->parts[NF4_NESTED_MAP], 0, sizeof(map), map, err) < 0)
        return -1;
    dynamic_map(true, want);
    if (memcmp(map, want, sizeof(map)) != 0)
        return err_set(err, ERR_UNSUPPORTED, "NF4: nested_quant_map is not the dynamic map");
    return 0;
}

static int state_check(const json_t *state, const struct nf4_places *places, float *offset, struct err *err)
{
    const json_t *shape = json_object_get(state, "shape"), *number = json_object_get(state, "nested_offset");
    const char *type = json_string_value(json_object_get(state, "quant_type"));
    json_int_t block = json_integer_value(json_object_get(state, "blocksize")),
               nested = json_integer_value(json_object_get(state, "nested_blocksize"));
    if (!type || strcmp(type, "nf4") != 0 || block != NF4_BLOCK ||
        (nf4_stored_nested(places) && nested != NF4_NESTED_BLOCK))
        return err_set(err, ERR_UNSUPPORTED,
                       "NF4: quant_state says %.20s in blocks of %lld and %lld; nf4 in %d and %d is read",
                       type ? type : "nothing", block, nested, NF4_BLOCK, NF4_NESTED_BLOCK);
    if (json_array_size(shape) != 2 ||
        json_integer_value(json_array_get(shape, 0)) != (json_int_t)places->rows ||
        json_integer_value(json_array_get(shape, 1)) != (json_int_t)places->columns)
        return err_set(err, ERR_INVALID, "NF4: quant_state.shape is not %llu x %llu",
                       (unsigned long long)places->rows, (unsigned long long)places->columns);
    *offset = (float)json_number_value(number);
    if (nf4_stored_nested(places) && (!json_is_number(number) || !isfinite(*offset)))
        return err_set(err, ERR_INVALID, "NF4: quant_state.nested_offset is no finite number");
    return 0;
}

/* Checks the JSON state of a tensor and returns the offset of its scales. */
static int nf4_stored_state_read(struct model_source *source, const struct nf4_places *places, float *offset,
                                 struct err *err)
{
    char text[STATE_BYTES_MAX];
    const struct nf4_place *place = &places->parts[NF4_STATE];
    if (maps_check(source, places, err) < 0 ||
        nf4_stored_part_read(source, place, 0, place->size, text, err) < 0)
        return -1;
    json_t *state = hub_json_parse(text, (size_t)place->size, JSON_DEPTH_MAX, err);
    int status = state ? state_check(state, places, offset, err) : err_wrap(err, "NF4: quant_state");
    json_decref(state);
    return status;
}

/* Reads the absmax of blocks [block, block + count), which share one nested scale. */
static int absmax_read(struct model_source *source, const struct nf4_places *places, float offset,
                       const float *map, uint64_t block, uint64_t count, float *absmax, struct err *err)
{
    uint8_t codes[PIECE_BLOCKS];
    float scales[2] = {offset, 0};
    if (!nf4_stored_nested(places))
        return nf4_stored_part_read(source, &places->parts[NF4_ABSMAX], 4 * block, 4 * count, absmax, err);
    if (nf4_stored_part_read(source, &places->parts[NF4_ABSMAX], block, count, codes, err) < 0 ||
        nf4_stored_part_read(source, &places->parts[NF4_NESTED], block / NF4_NESTED_BLOCK * 4, 4, &scales[1],
                             err) < 0)
        return -1;
    nf4_unnest(map, codes, scales, 0, count, absmax);
    return 0;
}

int nf4_stored_codes(struct model_source *source, const struct nf4_places *places, uint64_t begin,
                     uint64_t count, uint8_t *codes, float *absmax, struct err *err)
{
    float offset, map[DYNAMIC_MAP_SIZE];
    uint64_t block = begin / NF4_BLOCK, end = block + nf4_blocks(count);
    if (begin % NF4_BLOCK != 0 || begin > nf4_stored_values_of(places) ||
        count > nf4_stored_values_of(places) - begin ||
        (count % NF4_BLOCK != 0 && begin + count != nf4_stored_values_of(places)))
        return err_set(err, ERR_INTERNAL, "NF4: values %llu and %llu more of %llu", (unsigned long long)begin,
                       (unsigned long long)count, (unsigned long long)nf4_stored_values_of(places));
    dynamic_map(true, map);
    if (nf4_stored_state_read(source, places, &offset, err) < 0 ||
        nf4_stored_part_read(source, &places->codes, begin / 2, nf4_code_bytes(count), codes, err) < 0)
        return -1;
    while (block < end) {
        uint64_t stop = (block / PIECE_BLOCKS + 1) * PIECE_BLOCKS, n = (stop < end ? stop : end) - block;
        if (absmax_read(source, places, offset, map, block, n, absmax, err) < 0)
            return -1;
        absmax += n;
        block += n;
    }
    return 0;
}

int nf4_stored_scales(struct model_source *source, const struct nf4_places *places, uint8_t *codes,
                      float *scales, struct err *err)
{
    uint64_t values = nf4_stored_values_of(places);
    if (nf4_stored_state_read(source, places, &scales[0], err) < 0 ||
        nf4_stored_part_read(source, &places->parts[NF4_ABSMAX], 0, nf4_blocks(values), codes, err) < 0)
        return -1;
    return nf4_stored_part_read(source, &places->parts[NF4_NESTED], 0, 4 * (nf4_scales(values) - 1),
                                scales + 1, err);
}

int nf4_stored_values(struct model_source *source, const struct nf4_places *places, uint64_t begin,
                      uint64_t count, float *values, struct err *err)
{
    uint8_t codes[PIECE_VALUES / 2];
    float absmax[PIECE_BLOCKS], piece[PIECE_VALUES], map[DYNAMIC_MAP_SIZE], offset;
    uint64_t all = nf4_stored_values_of(places), end = begin + count;
    dynamic_map(true, map);
    if (nf4_stored_state_read(source, places, &offset, err) < 0)
        return -1;
    for (uint64_t from = begin / PIECE_VALUES * PIECE_VALUES; from < end; from += PIECE_VALUES) {
        uint64_t n = all - from < PIECE_VALUES ? all - from : PIECE_VALUES;
        uint64_t first = from < begin ? begin - from : 0, last = from + n < end ? n : end - from;
        if (nf4_stored_part_read(source, &places->codes, from / 2, nf4_code_bytes(n), codes, err) < 0 ||
            absmax_read(source, places, offset, map, from / NF4_BLOCK, nf4_blocks(n), absmax, err) < 0)
            return -1;
        nf4_dequantise(codes, absmax, n, piece);
        memcpy(values + (from + first - begin), piece + first, 4 * (last - first));
    }
    return 0;
}
