/* Matrix products with weights that were packed for this CPU.
 *
 * Weights are laid out in tiles of LANES outputs: for each step along the inputs, what every lane multiplies. A step is
 * one input (FLOAT32, FLOAT16), two (BFLOAT16, where the CPU multiplies pairs) or, for INT8, GROUP inputs and their
 * scales. Each output is summed step by step, so its bits are the same beside any number of other rows.
 *
 * INT8: weights and inputs are rounded GROUP by GROUP, each with a scale of its own (as in llama.cpp's Q8_0), so that an
 * outlier costs only its neighbours their precision; products within a group are added as integers, without rounding.
 */

#include "kernels.h"

#ifdef __AVX512F__
enum { TILES = 3, MOST_ROWS = 8, GROUP_TILES = 2, MOST_GROUP_ROWS = 4 }; /* sums fill the registers */
#else
enum { TILES = 1, MOST_ROWS = 4, GROUP_TILES = 1, MOST_GROUP_ROWS = 2 };
#endif

enum { QUADS = GROUP / 4 };

struct group { /* of LANES outputs; a weight is scale * (weights - 128) */
    uint8_t weights[QUADS][LANES][4];
    float scale[LANES];
};

INLINED long steps_of(long type, long inputs) {
    if (type == INT8) return (inputs + GROUP - 1) / GROUP;
    if (type == BFLOAT16 && IS_PAIRED) return (inputs + 1) / 2;
    return inputs;
}

INLINED size_t step_bytes(long type) {
    if (type == INT8) return sizeof(struct group);
    if (type == FLOAT32) return LANES * sizeof(float);
    if (type == BFLOAT16 && IS_PAIRED) return 2 * LANES * sizeof(uint16_t);
    return LANES * sizeof(uint16_t);
}

static long tiles_of(const struct product *product) {
    long together = product->type == INT8 ? GROUP_TILES : TILES;
    return ((product->outputs + LANES - 1) / LANES + together - 1) / together * together;
}

size_t packed_bytes(const struct product *product) {
    return (size_t)(tiles_of(product) * steps_of(product->type, product->inputs)) * step_bytes(product->type);
}

static void pack_group(const float *weights, long count, struct group *to, long lane) {
    float largest = 0.0f;
    for (long i = 0; i < count; i++) {
        float magnitude = __builtin_fabsf(weights[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (long i = 0; i < GROUP; i++)
        to->weights[i / 4][lane][i % 4] = (uint8_t)((i < count ? (int)__builtin_rintf(weights[i] * inverse) : 0) + 128);
    to->scale[lane] = largest / 127.0f;
}

static void pack_output(const float *weights, const struct product *product, char *tile, long lane) {
    long inputs = product->inputs, steps = steps_of(product->type, inputs);
    long together = steps == 0 ? 1 : (inputs + steps - 1) / steps; /* inputs a step */
    if (product->type == INT8) {
        for (long step = 0; step < steps; step++) {
            long left = inputs - step * GROUP;
            pack_group(weights + step * GROUP, left < GROUP ? left : GROUP, (struct group *)tile + step, lane);
        }
        return;
    }
    for (long i = 0; i < inputs; i++) {
        long place = i / together * LANES * together + lane * together + i % together;
        store(tile, product->type, place, weights + i, 1);
    }
}

struct packing {
    const void *weights;
    long type;
    const struct product *product;
};

static void pack_share(const struct member *me, void *what) {
    const struct packing *packing = what;
    const struct product *product = packing->product;
    const size_t tile_bytes = (size_t)steps_of(product->type, product->inputs) * step_bytes(product->type);
    const struct range mine = share_of(me, tiles_of(product));
    for (long tile = mine.first; tile < mine.stop; tile++) {
        char *to = (char *)product->packed + (size_t)tile * tile_bytes;
        memset(to, 0, tile_bytes);
        for (long lane = 0; lane < LANES && tile * LANES + lane < product->outputs; lane++) {
            float row[product->inputs];
            load(row, packing->weights, packing->type, (tile * LANES + lane) * product->inputs, product->inputs);
            pack_output(row, product, to, lane);
        }
    }
}

/* `weights` [outputs, inputs] of `type` to product->packed, which has packed_bytes(). */
void pack_weights(struct team *team, const void *weights, long type, const struct product *product) {
    struct packing packing = {weights, type, product};
    run_team(team, pack_share, &packing);
}

/* sums + weights * x for one step; `x` is what the row has there. */
INLINED vector add_step(vector sums, const char *weights, const char *x, const long type) {
    float value;
    memcpy(&value, x, sizeof value);
    if (type == FLOAT32) return sums + *(const vector *)weights * value;
#ifdef __AVX512BF16__
    if (type == BFLOAT16)
        return (vector)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_loadu_si512(weights),
                                        (__m512bh)_mm512_castps_si512(_mm512_set1_ps(value)));
#endif
    vector wide;
#ifdef __AVX512F__
    __m256i narrow = _mm256_loadu_si256((const __m256i *)weights);
    wide = type == FLOAT16 ? (vector)_mm512_cvtph_ps(narrow)
                           : (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
#else
    load((float *)&wide, weights, type, 0, LANES);
#endif
    return sums + wide * value;
}

INLINED void multiply_floats(const char *rows, const char *tiles, vector *sums, const long steps, const long type,
                             const long num_rows) {
    const size_t tile_bytes = (size_t)steps * step_bytes(type), stride = (size_t)steps * sizeof(float);
    vector sum[num_rows][TILES];
    for (long r = 0; r < num_rows; r++)
        for (long t = 0; t < TILES; t++) sum[r][t] = (vector){};
    for (long step = 0; step < steps; step++)
        for (long r = 0; r < num_rows; r++)
            for (long t = 0; t < TILES; t++)
                sum[r][t] = add_step(sum[r][t], tiles + (size_t)t * tile_bytes + (size_t)step * step_bytes(type),
                                     rows + (size_t)r * stride + (size_t)step * sizeof(float), type);
    memcpy(sums, sum, sizeof sum);
}

/* sums + weights * x, for four inputs a lane; the weights are 128 too large where the CPU wants them unsigned. */
INLINED integers add_quads(integers sums, const uint8_t (*weights)[4], int32_t x) {
#if defined __AVX512VNNI__
    return (integers)_mm512_dpbusd_epi32((__m512i)sums, _mm512_loadu_si512(weights), _mm512_set1_epi32(x));
#elif defined __AVX2__
    const __m256i inputs = _mm256_set1_epi32(x);
    __m256i halves[2];
    memcpy(halves, &sums, sizeof halves);
    for (long h = 0; h < 2; h++) {
        __m256i w = _mm256_loadu_si256((const __m256i *)(weights + 8 * h));
        w = _mm256_xor_si256(w, _mm256_set1_epi8((char)128)); /* signed: two products of 127 * 127 fit into 16 bits */
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(inputs, w));
        halves[h] = _mm256_add_epi32(halves[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    memcpy(&sums, halves, sizeof sums);
    return sums;
#else
    int8_t inputs[4];
    memcpy(inputs, &x, sizeof inputs);
    for (long lane = 0; lane < LANES; lane++)
        for (long i = 0; i < 4; i++) sums[lane] += ((int32_t)weights[lane][i] - 128) * inputs[i];
    return sums;
#endif
}

INLINED integers first_sums(const struct rounded *x) {
#ifdef __AVX512VNNI__
    return (integers){} + x->offset;
#else
    (void)x;
    return (integers){};
#endif
}

INLINED void multiply_groups(const struct rounded *rows, const struct group *tiles, vector *sums, const long steps,
                             const long num_rows) {
    vector sum[num_rows][GROUP_TILES];
    for (long r = 0; r < num_rows; r++)
        for (long t = 0; t < GROUP_TILES; t++) sum[r][t] = (vector){};
    for (long step = 0; step < steps; step++) {
        integers exact[num_rows][GROUP_TILES];
        for (long r = 0; r < num_rows; r++)
            for (long t = 0; t < GROUP_TILES; t++) exact[r][t] = first_sums(rows + r * steps + step);
#pragma GCC unroll 16
        for (long quad = 0; quad < QUADS; quad++)
            for (long r = 0; r < num_rows; r++) {
                int32_t x;
                memcpy(&x, rows[r * steps + step].values + 4 * quad, sizeof x);
                for (long t = 0; t < GROUP_TILES; t++)
                    exact[r][t] = add_quads(exact[r][t], tiles[t * steps + step].weights[quad], x);
            }
        for (long t = 0; t < GROUP_TILES; t++) {
            const vector scale = *(const vector *)tiles[t * steps + step].scale;
            for (long r = 0; r < num_rows; r++)
                sum[r][t] += __builtin_convertvector(exact[r][t], vector) * (scale * rows[r * steps + step].scale);
        }
    }
    memcpy(sums, sum, sizeof sum);
}

/* Some rows by the tiles that are computed together, from `tile` on. */
INLINED void multiply_some(const char *rows, const struct product *product, long tile, float *out, const long type,
                           const long num_rows) {
    const long steps = steps_of(type, product->inputs), together = type == INT8 ? GROUP_TILES : TILES;
    const char *tiles = (const char *)product->packed + (size_t)(tile * steps) * step_bytes(type);
    vector sums[num_rows * together];
    if (type == INT8)
        multiply_groups((const struct rounded *)rows, (const struct group *)tiles, sums, steps, num_rows);
    else
        multiply_floats(rows, tiles, sums, steps, type, num_rows);
    for (long t = 0; t < together; t++) {
        long first = (tile + t) * LANES, count = product->outputs - first < LANES ? product->outputs - first : LANES;
        for (long r = 0; r < num_rows && count > 0; r++) {
            float *to = out + r * product->outputs + first;
            memcpy(to, &sums[r * together + t], (size_t)count * sizeof *to);
            for (long i = 0; i < count && product->bias != NULL; i++) to[i] += product->bias[first + i];
        }
    }
}

/* All rows by the tiles from `tile` on. How many are computed together is a constant, so that loops unroll. */
INLINED void multiply_all(const char *rows, const struct product *product, long tile, float *out, long num_rows,
                          const long type) {
    const size_t stride = row_bytes(type, product->inputs);
    const long most = type == INT8 ? MOST_GROUP_ROWS : MOST_ROWS;
    long row = 0;
#define MULTIPLY(count)                                                                                      \
    for (; count <= most && row + count <= num_rows; row += count)                                           \
    multiply_some(rows + (size_t)row * stride, product, tile, out + row * product->outputs, type, count)
    MULTIPLY(8);
    MULTIPLY(4);
    MULTIPLY(2);
    MULTIPLY(1);
#undef MULTIPLY
}

/* `rows` as put_row writes them for the product's type -> `out` [num_rows, outputs]. */
void multiply_rows(const struct member *me, const void *rows, const struct product *product, float *out, long num_rows) {
    const long together = product->type == INT8 ? GROUP_TILES : TILES;
    const struct range mine = share_of(me, tiles_of(product) / together);
    for (long tile = mine.first * together; tile < mine.stop * together; tile += together) {
        if (product->type == INT8)
            multiply_all(rows, product, tile, out, num_rows, INT8);
        else if (product->type == BFLOAT16)
            multiply_all(rows, product, tile, out, num_rows, BFLOAT16);
        else if (product->type == FLOAT16)
            multiply_all(rows, product, tile, out, num_rows, FLOAT16);
        else
            multiply_all(rows, product, tile, out, num_rows, FLOAT32);
    }
}
