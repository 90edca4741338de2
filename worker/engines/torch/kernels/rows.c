/* What a decoder layer does to rows by themselves. */

#include "kernels.h"

static inline float sum_of_squares(const float *x, long width) {
    vector sums = {};
    long i = 0;
    for (; i + LANES <= width; i += LANES) sums += *(const vector *)(x + i) * *(const vector *)(x + i);
    float sum = sum_of(sums);
    for (; i < width; i++) sum += x[i] * x[i];
    return sum;
}

/* A row of `width` as a product of this type takes it, padded with zeros to whole steps. */
size_t row_bytes(long type, long width) {
    if (type == INT8) return (size_t)((width + GROUP - 1) / GROUP) * sizeof(struct rounded);
    if (type == BFLOAT16 && IS_PAIRED) return (size_t)((width + 1) / 2) * 2 * sizeof(uint16_t);
    return (size_t)width * sizeof(float);
}

typedef int8_t bytes __attribute__((vector_size(LANES)));

enum { INFINITE = 0x7f800000 }; /* the exponent of infinity and NaN */

static inline void round_group(const float *restrict x, struct rounded *out) {
    vector largest = {};
    integers broken = {}; /* set where something is no finite number */
    for (long i = 0; i < GROUP; i += LANES) {
        vector values = *(const vector *)(x + i);
        vector magnitudes = larger(-values, values);
        largest = larger(magnitudes, largest);
        broken |= ((integers)values & INFINITE) == INFINITE;
    }
    float most = largest_of(largest);
    const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
    integers sums = {};
    for (long i = 0; i < GROUP; i += LANES) {
        integers whole = __builtin_convertvector(rounded_to_whole(*(const vector *)(x + i) * inverse), integers);
        sums += whole;
        bytes narrow = __builtin_convertvector(whole, bytes);
        memcpy(out->values + i, &narrow, sizeof narrow);
    }
    out->scale = most / 127.0f;
    out->offset = 0;
    for (long lane = 0; lane < LANES; lane++) {
        out->offset -= 128 * sums[lane];
        if (broken[lane]) out->scale = __builtin_nanf("");
    }
}

static void put_row(const float *row, void *out, long type, long index, long width) {
    if (type == INT8) {
        struct rounded *target = (struct rounded *)((char *)out + (size_t)index * row_bytes(type, width));
        for (long first = 0; first < width; first += GROUP) {
            float part[GROUP] = {0};
            memcpy(part, row + first, (size_t)(width - first < GROUP ? width - first : GROUP) * sizeof *part);
            round_group(part, target++);
        }
    } else if (type == BFLOAT16 && IS_PAIRED) {
        long stride = (width + 1) / 2 * 2;
        store(out, BFLOAT16, index * stride, row, width);
        if (stride > width) ((uint16_t *)out)[index * stride + width] = 0;
    } else {
        store(out, FLOAT32, index * width, row, width);
    }
}

/* The RMS norm of x, times the weight, to row `index` of `out`. */
void norm_row(const float *x, const struct norm *norm, void *out, long type, long index, long width) {
    float normed[width];
    float factor = 1.0f / __builtin_sqrtf(sum_of_squares(x, width) / (float)width + norm->epsilon);
    for (long i = 0; i < width; i++) normed[i] = x[i] * factor * norm->weight[i];
    put_row(normed, out, type, index, width);
}

/* residual [rows, width] += delta (none: NULL), and its norm is put to `out`. */
void norm_rows(const struct member *me, float *residual, const float *delta, const struct norm *norm, void *out, long type,
               long rows, long width) {
    const struct range mine = share_of(me, rows);
    for (long row = mine.first; row < mine.stop; row++) {
        float *x = residual + row * width;
        if (delta != NULL)
            for (long i = 0; i < width; i++) x[i] += delta[row * width + i];
        norm_row(x, norm, out, type, row, width);
    }
}

void convert_rows(const struct member *me, const float *in, void *out, long type, long rows, long width) {
    const struct range mine = share_of(me, rows);
    for (long row = mine.first; row < mine.stop; row++) put_row(in + row * width, out, type, row, width);
}

/* silu(gate) * up of rows [gate | up], each `width` wide. */
void silu_rows(const struct member *me, const float *in, void *out, long type, long rows, long width) {
    const struct range mine = share_of(me, rows);
    for (long row = mine.first; row < mine.stop; row++) {
        const float *gate = in + 2 * row * width, *up = gate + width;
        float product[width + LANES];
        for (long i = 0; i < width; i += LANES) {
            float padded[2][LANES] = {{0}};
            size_t bytes = (size_t)(width - i < LANES ? width - i : LANES) * sizeof(float);
            memcpy(padded[0], gate + i, bytes);
            memcpy(padded[1], up + i, bytes);
            vector x = *(vector *)padded[0];
            *(vector *)(product + i) = x / (1.0f + exponentials(-x)) * *(vector *)padded[1];
        }
        put_row(product, out, type, row, width);
    }
}

/* Norms a head's vector where the model does, and turns it by its position: cos, sin [head_dim], halves turned together. */
static inline void turn(float *restrict x, const float *norm, float epsilon, const float *restrict cos,
                        const float *restrict sin, long width) {
    if (norm != NULL) {
        float factor = 1.0f / __builtin_sqrtf(sum_of_squares(x, width) / (float)width + epsilon);
        for (long i = 0; i < width; i++) x[i] = x[i] * factor * norm[i];
    }
    long half = width / 2;
    for (long i = 0; i < half; i++) {
        float low = x[i], high = x[i + half];
        x[i] = low * cos[i] - high * sin[i];
        x[i + half] = high * cos[i + half] + low * sin[i + half];
    }
}

/* From rows [q | k | v]: the queries, turned, to `queries` [rows, num_heads, head_dim]; keys, turned, and values into
 * the pool. */
void rope_rows(const struct member *me, const float *in, const struct heads *heads, const struct step *step,
               float *queries, const struct pages *pages) {
    long width = heads->head_dim, num_heads = heads->num_heads, num_kv = heads->num_kv_heads;
    long total = (num_heads + 2 * num_kv) * width;
    const struct range mine = share_of(me, step->rows);
    for (long row = mine.first; row < mine.stop; row++) {
        float x[total];
        memcpy(x, in + row * total, sizeof x);
        const float *cos = step->cos + row * width, *sin = step->sin + row * width;
        for (long head = 0; head < num_heads; head++) turn(x + head * width, heads->q_norm, heads->epsilon, cos, sin, width);
        memcpy(queries + row * num_heads * width, x, (size_t)(num_heads * width) * sizeof *x);
        if (row >= step->stored) continue;
        float *k = x + num_heads * width, *v = k + num_kv * width;
        for (long head = 0; head < num_kv; head++) turn(k + head * width, heads->k_norm, heads->epsilon, cos, sin, width);
        store(pages->keys, pages->type, step->slots[row], k, num_kv * width);
        store(pages->values, pages->type, step->slots[row], v, num_kv * width);
    }
}
