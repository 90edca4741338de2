/* A decoder network over the rows (tokens) of one step, and its parts.
 *
 * A row's result depends on that row and on its own sequence alone, never on how many rows the step has, how they are
 * spread over threads or how a prompt was cut: its bits are the same in every batch. So every sum runs over one row
 * (or one block of keys) in an order that the code says, and the compiler may not reorder it.
 */

#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum type { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3 };

enum {
    LANES = 16, /* of a vector */
    GROUP = 64, /* neighbours in a row that share a scale when they are rounded to 8 bits */
};

typedef float vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(4), may_alias));

/* Whether products of bfloat16 take pairs of them, or floats. */
#ifdef __AVX512BF16__
enum { IS_PAIRED = 1 };
#else
enum { IS_PAIRED = 0 };
#endif

#define ALIGNED __attribute__((aligned(64)))
#define INLINED static inline __attribute__((always_inline))

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

static inline void load(float *restrict to, const void *restrict from, long type, ptrdiff_t first, long count) {
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

static inline void store(void *restrict to, long type, ptrdiff_t first, const float *restrict from, long count) {
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

static inline vector all(float x) { return (vector){} + x; }

/* Lanes of `a` where the mask is set, else of `b`. */
static inline vector choose(integers mask, vector a, vector b) {
    return (vector)((mask & (integers)a) | (~mask & (integers)b));
}

/* Lane by lane; `b` where either is no number. */
#ifdef __AVX512F__
static inline vector larger(vector a, vector b) { return (vector)_mm512_max_ps((__m512)a, (__m512)b); }
static inline vector smaller(vector a, vector b) { return (vector)_mm512_min_ps((__m512)a, (__m512)b); }
#else
static inline vector larger(vector a, vector b) { return choose(a > b, a, b); }
static inline vector smaller(vector a, vector b) { return choose(a < b, a, b); }
#endif

static inline float sum_of(vector x) {
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
}

static inline float largest_of(vector x) {
    x = larger(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    x = larger(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    x = larger(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    return x[0];
}

/* Of numbers up to 2^22: beside 1.5 * 2^23 nothing is left behind the point. */
static inline vector rounded_to_whole(vector x) { return (x + 12582912.0f) - 12582912.0f; }

/* e^x to about one unit in the last place: 2^n times a polynomial in the rest (Cephes' expf). NaN stays NaN; what a
 * float can't hold becomes the nearest that it can. */
static inline vector exponentials(vector x) {
    x = smaller(all(88.0f), larger(all(-87.0f), x));
    vector whole = rounded_to_whole(x * 1.44269504f);
    vector r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vector)((__builtin_convertvector(whole, integers) + 127) << 23);
}

/* How rows are written for a product with weights of a type. */
struct rounded { /* GROUP neighbours: scale * values[i] */
    int8_t values[GROUP];
    float scale;
    int32_t offset; /* -128 * the sum of the values */
};

/* y = x W^T + bias. */
struct product {
    void *packed; /* see products.c */
    const float *bias; /* [outputs] or NULL */
    long type, outputs, inputs;
};

struct heads {
    long num_heads, num_kv_heads, head_dim;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    float epsilon;
};

/* One layer's pages: element `block * block_stride + offset * num_kv_heads * head_dim` is where a token's begin. */
struct pages {
    void *keys, *values;
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

/* What the rows of a step are. Rows from `stored` on are padding. */
struct step {
    const float *cos, *sin; /* [rows, head_dim] */
    const struct tile *tiles;
    const int32_t *blocks; /* the sequences' block tables, one after the other */
    const int64_t *slots;  /* [stored]: the element of a layer's pages at which a token's KV begins */
    long num_tiles, stored, rows;
};

struct norm {
    const float *weight;
    float epsilon;
};

/* One of the threads that compute a step together. Each does its share of a part, and nobody begins the next part before
 * all have `met`. */
struct member {
    struct team *team;
    long index;
};

struct range {
    long first, stop;
};

void run_team(struct team *team, void (*work)(const struct member *, void *), void *what);
long team_size(const struct member *me);
struct range share_of(const struct member *me, long count);
long next_item(const struct member *me); /* 0, 1, ..., each to one member, since all met last */
void meet(const struct member *me);

size_t row_bytes(long type, long width);
void norm_row(const float *x, const struct norm *norm, void *out, long type, long index, long width);
void norm_rows(const struct member *me, float *residual, const float *delta, const struct norm *norm, void *out, long type,
               long rows, long width);
void convert_rows(const struct member *me, const float *in, void *out, long type, long rows, long width);
void silu_rows(const struct member *me, const float *in, void *out, long type, long rows, long width);
void rope_rows(const struct member *me, const float *in, const struct heads *heads, const struct step *step,
               float *queries, const struct pages *pages);
void attend_rows(const struct member *me, const float *queries, const struct heads *heads, const struct attention *how,
                 const struct step *step, const struct pages *pages, float *out);
void multiply_rows(const struct member *me, const void *rows, const struct product *product, float *out, long num_rows);

#endif
