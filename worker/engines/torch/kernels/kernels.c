/* What a decoder layer does between its matrix products, over the rows (tokens) of one step.
 *
 * A row's result depends on that row and on its own sequence alone, never on how many rows the step has, how they are
 * spread over threads or how a prompt was cut: its bits are the same in every batch. So every sum runs over one row
 * (or one block of keys) in a fixed order.
 *
 * Rows come as float32 or bfloat16, and where `scale` is set, row i stands for scale[i] times what is written.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum type { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, UINT8 = 3 };

enum {
    SMALL = 1 << 14, /* elements: below, waking other threads costs more than it saves */
};

static const float LOWEST = -1e30f;

static inline float from_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)rounded;
}

/* e^x to about one unit in the last place: 2^n times a polynomial in the rest (Cephes' expf). 0 far below, NaN for NaN. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static inline void load(float *restrict to, const void *restrict from, int type, ptrdiff_t first, long count) {
    if (type == FLOAT32) {
        memcpy(to, (const float *)from + first, (size_t)count * sizeof *to);
    } else if (type == BFLOAT16) {
        const uint16_t *source = (const uint16_t *)from + first;
        for (long i = 0; i < count; i++) to[i] = from_bfloat16(source[i]);
    } else {
        const _Float16 *source = (const _Float16 *)from + first;
        for (long i = 0; i < count; i++) to[i] = (float)source[i];
    }
}

static inline void store(void *restrict to, int type, ptrdiff_t first, const float *restrict from, long count) {
    if (type == FLOAT32) {
        memcpy((float *)to + first, from, (size_t)count * sizeof *from);
    } else if (type == BFLOAT16) {
        uint16_t *target = (uint16_t *)to + first;
        for (long i = 0; i < count; i++) target[i] = to_bfloat16(from[i]);
    } else {
        _Float16 *target = (_Float16 *)to + first;
        for (long i = 0; i < count; i++) target[i] = (_Float16)from[i];
    }
}

/* How rows are written for the next matrix product. With `scale` each is divided by its largest magnitude / `limit`,
 * which is noted there, and rounded to whole numbers; as UINT8 zero is at limit + 1. */
struct form {
    void *data;
    float *scale;
    long type, limit;
};

static inline void put_row(const float *restrict row, const struct form *out, long index, long width) {
    if (out->scale == NULL) {
        store(out->data, (int)out->type, index * width, row, width);
        return;
    }
    float limit = (float)out->limit;
    float largest = 0.0f, poison = 0.0f; /* poison: 0, or NaN where the row has something that is no finite number */
    for (long i = 0; i < width; i++) {
        float magnitude = __builtin_fabsf(row[i]);
        largest = magnitude > largest ? magnitude : largest;
        poison += magnitude * 0.0f;
    }
    float unit = largest > 0.0f ? largest / limit : 1.0f;
    float inverse = 1.0f / unit;
    out->scale[index] = unit + poison;
    if (out->type == UINT8) {
        uint8_t *target = (uint8_t *)out->data + index * width;
        for (long i = 0; i < width; i++)
            target[i] = (uint8_t)(int32_t)(__builtin_rintf(row[i] * inverse) + limit + 1.0f);
    } else {
        float *target = (float *)out->data + index * width;
        for (long i = 0; i < width; i++) target[i] = __builtin_rintf(row[i] * inverse);
    }
}

/* residual [rows, width] += delta (none: NULL), and its RMS norm times `weight` is put to `out`. */
void norm_rows(float *residual, const void *delta, int delta_type, const float *delta_scale, const float *weight,
               float epsilon, const struct form *out, long rows, long width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1 && rows * width > SMALL)
    for (long row = 0; row < rows; row++) {
        float *x = residual + row * width;
        float changed[width], normed[width];
        if (delta != NULL) {
            float scale = delta_scale == NULL ? 1.0f : delta_scale[row];
            load(changed, delta, delta_type, row * width, width);
            for (long i = 0; i < width; i++) x[i] += scale * changed[i];
        }
        float squares = 0.0f;
        for (long i = 0; i < width; i++) squares += x[i] * x[i];
        float factor = 1.0f / __builtin_sqrtf(squares / (float)width + epsilon);
        for (long i = 0; i < width; i++) normed[i] = x[i] * factor * weight[i];
        put_row(normed, out, row, width);
    }
}

/* Puts rows to another form. */
void convert_rows(const float *in, const struct form *out, long rows, long width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1 && rows * width > SMALL)
    for (long row = 0; row < rows; row++) put_row(in + row * width, out, row, width);
}

/* silu(gate) * up of rows [gate | up], each `width` wide. */
void silu_rows(const void *in, int type, const float *scale, const struct form *out, long rows, long width,
               int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1 && rows * width > SMALL)
    for (long row = 0; row < rows; row++) {
        float gate[width], up[width];
        load(gate, in, type, 2 * row * width, width);
        load(up, in, type, (2 * row + 1) * width, width);
        float unit = scale == NULL ? 1.0f : scale[row];
        for (long i = 0; i < width; i++) {
            float x = gate[i] * unit;
            gate[i] = x / (1.0f + exponential(-x)) * (up[i] * unit);
        }
        put_row(gate, out, row, width);
    }
}

struct heads {
    long num_heads, num_kv_heads, head_dim;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    float epsilon;
};

/* Norms a head's vector where the model does, and turns it by its position: cos, sin [head_dim], halves turned together. */
static inline void turn(float *restrict x, const float *norm, float epsilon, const float *restrict cos,
                        const float *restrict sin, long width) {
    if (norm != NULL) {
        float squares = 0.0f;
        for (long i = 0; i < width; i++) squares += x[i] * x[i];
        float factor = 1.0f / __builtin_sqrtf(squares / (float)width + epsilon);
        for (long i = 0; i < width; i++) x[i] = x[i] * factor * norm[i];
    }
    long half = width / 2;
    for (long i = 0; i < half; i++) {
        float low = x[i], high = x[i + half];
        x[i] = low * cos[i] - high * sin[i];
        x[i + half] = high * cos[i + half] + low * sin[i + half];
    }
}

/* From rows [q | k | v]: the queries, turned, to `queries` float32 [rows, num_heads, head_dim]; keys, turned, and values
 * into the pool, row i's at element slots[i]. Rows from `stored` on are padding. */
void rope_rows(const void *in, int type, const float *scale, const struct heads *heads, const float *cos, const float *sin,
               float *queries, void *keys, void *values, int kv_type, const int64_t *slots, long stored, long rows,
               int threads) {
    long width = heads->head_dim, num_heads = heads->num_heads, num_kv = heads->num_kv_heads;
    long total = (num_heads + 2 * num_kv) * width;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows > 1 && rows * total > SMALL)
    for (long row = 0; row < rows; row++) {
        float x[total];
        float unit = scale == NULL ? 1.0f : scale[row];
        load(x, in, type, row * total, total);
        for (long i = 0; i < total; i++) x[i] *= unit;
        const float *row_cos = cos + row * width, *row_sin = sin + row * width;
        for (long head = 0; head < num_heads; head++)
            turn(x + head * width, heads->q_norm, heads->epsilon, row_cos, row_sin, width);
        memcpy(queries + row * num_heads * width, x, (size_t)(num_heads * width) * sizeof *x);
        if (row >= stored) continue;
        float *k = x + num_heads * width, *v = k + num_kv * width;
        for (long head = 0; head < num_kv; head++)
            turn(k + head * width, heads->k_norm, heads->epsilon, row_cos, row_sin, width);
        store(keys, kv_type, slots[row], k, num_kv * width);
        store(values, kv_type, slots[row], v, num_kv * width);
    }
}

/* One layer's pages: element `block * block_stride + offset * num_kv_heads * head_dim` is where a token's begin. */
struct pages {
    const void *keys, *values;
    long type, block_stride, block_size;
};

/* Neighbouring tokens of one sequence, as rows of the step; `position` of the first, `blocks` where its table begins. */
struct tile {
    int32_t first_row, num_rows, position, blocks;
};

struct attention {
    float scale;
    long window; /* tokens that a token sees, itself included; 0: all before it */
};

enum { LANES = 16 };

typedef float vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(LANES * sizeof(int32_t))));

/* Lanes of `a` where the mask is set, else of `b`. */
static inline vector choose(integers mask, vector a, vector b) {
    return (vector)((mask & (integers)a) | (~mask & (integers)b));
}

static inline vector all(float x) { return (vector){} + x; }

/* [a0 + a1, a2 + a3, ..., b0 + b1, b2 + b3, ...] */
static inline vector pair_sums(vector a, vector b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/* Lane i: the sum of all lanes of terms[i]. */
static inline vector lane_sums(vector *terms) {
    for (int left = LANES / 2; left > 0; left /= 2)
        for (int i = 0; i < left; i++) terms[i] = pair_sums(terms[2 * i], terms[2 * i + 1]);
    return terms[0];
}

static inline float sum_of(vector x) {
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
}

/* `exponential` of lanes up to 0. */
static inline vector exponentials(vector x) {
    x = choose(x < -87.0f, all(-87.0f), x);
    integers n = __builtin_convertvector(x * 1.44269504f - 0.5f, integers);
    vector whole = __builtin_convertvector(n, vector);
    vector r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vector)((n + 127) << 23);
}

/* LANES neighbouring tokens' keys and values of one KV head, float32 and padded to whole vectors. */
struct group {
    const float *keys[LANES], *values[LANES];
};

/* Points to the tokens from `begin` on; those after `last` repeat it. What is not float32, or no whole vectors, is copied. */
static inline void find_group(struct group *group, const struct pages *pages, const int32_t *table, ptrdiff_t head_first,
                              ptrdiff_t token_stride, long begin, long last, long width, long wide, float *scratch) {
    for (long j = 0; j < LANES; j++) {
        long position = begin + j < last ? begin + j : last;
        ptrdiff_t first = (ptrdiff_t)table[position / pages->block_size] * pages->block_stride +
                          position % pages->block_size * token_stride + head_first;
        if (pages->type == FLOAT32 && width == wide) {
            group->keys[j] = (const float *)pages->keys + first;
            group->values[j] = (const float *)pages->values + first;
        } else {
            float *k = scratch + 2 * j * wide, *v = k + wide;
            load(k, pages->keys, (int)pages->type, first, width);
            load(v, pages->values, (int)pages->type, first, width);
            for (long i = width; i < wide; i++) k[i] = v[i] = 0.0f;
            group->keys[j] = k;
            group->values[j] = v;
        }
    }
}

/* The queries of one tile and of the heads that share a KV head. Softmax goes along (Milakov & Gimelshein 2018), LANES
 * tokens after the other, counted from the sequence's first, so that it is summed alike however the tile was cut.
 * `num_vectors` of a head is a constant where the callers say one, so that loops unroll. */
static inline __attribute__((always_inline)) void attend_tile(const struct tile *tile, long kv_head, const float *queries,
                                                              const struct pages *pages, const int32_t *blocks,
                                                              const struct heads *heads, const struct attention *how,
                                                              float *out, const long num_vectors) {
    const long width = heads->head_dim, wide = num_vectors * LANES;
    const long per_kv = heads->num_heads / heads->num_kv_heads, num = tile->num_rows * per_kv;
    const ptrdiff_t token_stride = heads->num_kv_heads * width;
    float scratch[2 * LANES * wide] __attribute__((aligned(64)));
    vector asked[num][num_vectors], sums[num][num_vectors];
    float peaks[num], totals[num];
    for (long r = 0; r < num; r++) {
        const float *q = queries + ((tile->first_row + r / per_kv) * heads->num_heads + kv_head * per_kv + r % per_kv) * width;
        float *to = (float *)asked[r];
        for (long i = 0; i < wide; i++) to[i] = i < width ? q[i] * how->scale : 0.0f;
        for (long c = 0; c < num_vectors; c++) sums[r][c] = (vector){};
        peaks[r] = LOWEST;
        totals[r] = 0.0f;
    }
    const long last = tile->position + tile->num_rows - 1;
    const long seen = how->window > 0 && tile->position >= how->window ? tile->position - how->window + 1 : 0;
    struct group group;
    for (long begin = seen / LANES * LANES; begin <= last; begin += LANES) {
        find_group(&group, pages, blocks + tile->blocks, kv_head * width, token_stride, begin, last, width, wide, scratch);
        for (long r = 0; r < num; r++) {
            const long position = tile->position + r / per_kv;
            long from = how->window > 0 ? position - how->window + 1 - begin : 0, to = position + 1 - begin;
            from = from < 0 ? 0 : from;
            to = to > LANES ? LANES : to;
            if (from >= to) continue;
            vector scores[LANES];
            for (long j = 0; j < LANES; j++) {
                vector products = (vector){};
                for (long c = 0; c < num_vectors; c++) products += asked[r][c] * ((const vector *)group.keys[j])[c];
                scores[j] = products;
            }
            vector score = lane_sums(scores);
            const integers lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
            integers is_seen = (lane >= (int32_t)from) & (lane < (int32_t)to);
            score = choose(is_seen, score, all(LOWEST));
            float peak = peaks[r];
            for (long j = 0; j < LANES; j++) peak = score[j] > peak ? score[j] : peak;
            vector weights = choose(is_seen, exponentials(score - peak), all(0.0f));
            float shrink = exponential(peaks[r] - peak);
            vector sum[num_vectors];
            for (long c = 0; c < num_vectors; c++) sum[c] = sums[r][c] * shrink;
            for (long j = from; j < to; j++)
                for (long c = 0; c < num_vectors; c++) sum[c] += weights[j] * ((const vector *)group.values[j])[c];
            for (long c = 0; c < num_vectors; c++) sums[r][c] = sum[c];
            totals[r] = totals[r] * shrink + sum_of(weights);
            peaks[r] = peak;
        }
    }
    for (long r = 0; r < num; r++) {
        float *to = out + ((tile->first_row + r / per_kv) * heads->num_heads + kv_head * per_kv + r % per_kv) * width;
        const float *sum = (const float *)sums[r];
        float inverse = 1.0f / totals[r];
        for (long i = 0; i < width; i++) to[i] = sum[i] * inverse;
    }
}

/* `queries` and `out` float32 [rows, num_heads, head_dim]; rows that no tile has are left alone. */
void attend_rows(const struct tile *tiles, long num_tiles, const float *queries, const struct pages *pages,
                 const int32_t *blocks, const struct heads *heads, const struct attention *how, float *out, int threads) {
    long num_items = num_tiles * heads->num_kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (num_items > 1 && threads > 1)
    for (long item = num_items - 1; item >= 0; item--) { /* the longest of a prompt first */
        const struct tile *tile = tiles + item / heads->num_kv_heads;
        long kv_head = item % heads->num_kv_heads;
        if (heads->head_dim == 4 * LANES)
            attend_tile(tile, kv_head, queries, pages, blocks, heads, how, out, 4);
        else if (heads->head_dim == 8 * LANES)
            attend_tile(tile, kv_head, queries, pages, blocks, heads, how, out, 8);
        else
            attend_tile(tile, kv_head, queries, pages, blocks, heads, how, out, (heads->head_dim + LANES - 1) / LANES);
    }
}
