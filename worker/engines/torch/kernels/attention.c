/* Attention over KV in pages, where it lies. */

#include "kernels.h"

static const float LOWEST = -1e30f;

enum {
    KEYS = 64, /* that a softmax takes at once, counted from a sequence's first */
    QUERIES = 4, /* that meet a key together */
    WIDTH = 4,   /* vectors of values that are summed together; heads are padded to it */
};

/* Where neighbouring tokens' keys and values begin, in elements of the layer's pages. */
struct tokens {
    ptrdiff_t first[KEYS];
    long count;
};

/* The tokens from `begin` on, up to `last`; none if it is beyond. */
static inline void find_tokens(struct tokens *tokens, const struct pages *pages, const int32_t *table, ptrdiff_t stride,
                               long begin, long last) {
    long block = begin / pages->block_size, offset = begin % pages->block_size, left = last + 1 - begin;
    tokens->count = left < 0 ? 0 : left < KEYS ? left : KEYS;
    for (long j = 0; j < tokens->count; j++) {
        tokens->first[j] = (ptrdiff_t)table[block] * pages->block_stride + offset * stride;
        if (++offset == pages->block_size) offset = 0, block++;
    }
}

#ifdef __AVX512F__
/* [a0, b0, a1, b1, ...] of the first half, or the second. */
static inline vector first_halves(vector a, vector b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline vector second_halves(vector a, vector b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Lane j of rows[i] goes to lane i of rows[j]: four perfect shuffles. */
static inline void transpose(vector *rows) {
    vector other[LANES];
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < LANES / 2; i++) {
            other[2 * i] = first_halves(rows[i], rows[i + LANES / 2]);
            other[2 * i + 1] = second_halves(rows[i], rows[i + LANES / 2]);
        }
        for (int i = 0; i < LANES / 2; i++) {
            rows[2 * i] = first_halves(other[i], other[i + LANES / 2]);
            rows[2 * i + 1] = second_halves(other[i], other[i + LANES / 2]);
        }
    }
}
#else
static inline void transpose(vector *rows) {
    float turned[LANES][LANES];
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) turned[j][i] = rows[i][j];
    memcpy(rows, turned, sizeof turned);
}
#endif

/* Asks for a KV head of tokens that will be read soon. */
static inline void ask_for(const struct pages *pages, const struct tokens *tokens, ptrdiff_t head_first, long width,
                           long from, long to) {
    const size_t size = pages->type == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    for (long j = from; j < to && j < tokens->count; j++)
        for (size_t byte = 0; byte < (size_t)width * size; byte += 64) {
            const size_t place = (size_t)(tokens->first[j] + head_first) * size + byte;
            __builtin_prefetch((const char *)pages->keys + place, 0, 2);
            __builtin_prefetch((const char *)pages->values + place, 0, 2);
        }
}

/* keys[part * wide + i], lane j: element i of the key of token part * LANES + j; what is no token's is 0. Asks for the
 * tokens that are next meanwhile. */
static inline void load_keys(vector *keys, const struct pages *pages, const struct tokens *tokens,
                             const struct tokens *next, ptrdiff_t head_first, long width, long wide) {
    for (long part = 0; part * LANES < tokens->count; part++) {
        ask_for(pages, next, head_first, width, part * LANES, (part + 1) * LANES);
        for (long i = 0; i < wide; i += LANES) {
            vector *rows = keys + part * wide + i;
            const long left = width - i < 0 ? 0 : width - i < LANES ? width - i : LANES;
            for (long j = 0; j < LANES; j++) {
                const long token = part * LANES + j;
                const ptrdiff_t first = token < tokens->count ? tokens->first[token] + head_first + i : 0;
                if (left == LANES && token < tokens->count) {
                    load((float *)&rows[j], pages->keys, pages->type, first, LANES);
                } else {
                    rows[j] = (vector){};
                    if (token < tokens->count) load((float *)&rows[j], pages->keys, pages->type, first, left);
                }
            }
            transpose(rows);
        }
    }
}

/* values[j]: token j's, `wide` floats; copied to `scratch` where they do not lie so. */
static inline void find_values(const float **values, float *scratch, const struct pages *pages,
                               const struct tokens *tokens, ptrdiff_t head_first, long width, long wide) {
    for (long j = 0; j < tokens->count; j++) {
        const ptrdiff_t first = tokens->first[j] + head_first;
        if (pages->type == FLOAT32 && width == wide) {
            values[j] = (const float *)pages->values + first;
            continue;
        }
        float *copy = scratch + j * wide;
        load(copy, pages->values, pages->type, first, width);
        for (long i = width; i < wide; i++) copy[i] = 0.0f;
        values[j] = copy;
    }
}

/* One query: what it asks (`wide` floats), and its softmax so far. `sums` (`wide` floats) and `total` (lane by lane) are
 * relative to e^peak. */
struct query {
    const float *asked;
    float *sums;
    vector total;
    float peak;
    long from, to; /* which of the tokens at hand it sees */
};

/* Turns the scores of a query into weights, with 0 for what it does not see -> what its sums shrink by. */
INLINED vector weigh(struct query *query, vector *scores, long count) {
    const integers lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int is_whole = query->from <= 0 && query->to >= count && count % LANES == 0;
    const int32_t from = (int32_t)(query->from < 0 ? 0 : query->from), to = (int32_t)query->to;
    vector top = all(query->peak);
    for (int32_t first = 0; first < count; first += LANES) {
        vector *score = scores + first / LANES;
        if (!is_whole) *score = choose((lane >= from - first) & (lane < to - first), *score, all(LOWEST));
        top = larger(*score, top);
    }
    const float peak = largest_of(top);
    const vector shrink = exponentials(all(query->peak - peak));
    query->peak = peak;
    query->total *= shrink;
    for (int32_t first = 0; first < count; first += LANES) {
        vector *score = scores + first / LANES, weights = exponentials(*score - peak);
        if (!is_whole) weights = choose((lane >= from - first) & (lane < to - first), weights, (vector){});
        query->total += weights;
        *score = weights;
    }
    return shrink;
}

/* `num` queries over the tokens at hand, of which those from `from` on are seen by any. */
INLINED void ask(struct query *queries, const vector *keys, const float *const *values, long from, long count, long wide,
                  const long num) {
    vector scores[num][KEYS / LANES];
    for (long part = 0; part * LANES < count; part++) {
        const vector *key = keys + part * wide;
        vector sums[num][2]; /* of even and of odd elements: two chains of additions */
        for (long q = 0; q < num; q++) sums[q][0] = sums[q][1] = (vector){};
        for (long i = 0; i < wide; i += 2)
            for (long q = 0; q < num; q++)
                for (long odd = 0; odd < 2; odd++) sums[q][odd] += key[i + odd] * queries[q].asked[i + odd];
        for (long q = 0; q < num; q++) scores[q][part] = sums[q][0] + sums[q][1];
    }
    vector shrink[num];
    for (long q = 0; q < num; q++) shrink[q] = weigh(queries + q, scores[q], count);
    for (long i = 0; i < wide; i += WIDTH * LANES) {
        vector sums[num][WIDTH];
        for (long q = 0; q < num; q++)
            for (long c = 0; c < WIDTH; c++) sums[q][c] = ((vector *)(queries[q].sums + i))[c] * shrink[q];
        for (long j = from; j < count; j++)
            for (long q = 0; q < num; q++)
                for (long c = 0; c < WIDTH; c++)
                    sums[q][c] += ((const vector *)(values[j] + i))[c] * ((const float *)scores[q])[j];
        for (long q = 0; q < num; q++)
            for (long c = 0; c < WIDTH; c++) ((vector *)(queries[q].sums + i))[c] = sums[q][c];
    }
}

/* All of `num` queries; how many meet the keys together is a constant, so that loops unroll. */
static void ask_all(struct query *queries, long num, const vector *keys, const float *const *values, long from,
                     long count, long wide) {
    for (; num >= QUERIES; num -= QUERIES, queries += QUERIES) ask(queries, keys, values, from, count, wide, QUERIES);
    if (num == 3) ask(queries, keys, values, from, count, wide, 3);
    if (num == 2) ask(queries, keys, values, from, count, wide, 2);
    if (num == 1) ask(queries, keys, values, from, count, wide, 1);
}

/* The queries of one tile under some KV heads. Softmax goes along (Milakov & Gimelshein 2018), KEYS tokens after the
 * other, counted from the sequence's first, so that it is summed alike however the tile was cut. */
static void attend_tile(const struct tile *tile, long first_kv_head, long num_kv_heads, const float *queries,
                        const struct pages *pages, const int32_t *table, const struct heads *heads,
                        const struct attention *how, float *out) {
    const long width = heads->head_dim, wide = (width + WIDTH * LANES - 1) / (WIDTH * LANES) * WIDTH * LANES;
    const long per_kv = heads->num_heads / heads->num_kv_heads, per_head = tile->num_rows * per_kv;
    const long num = per_head * num_kv_heads;
    vector keys[KEYS / LANES * wide] ALIGNED;
    float scratch[KEYS * wide] ALIGNED, asked[num * wide] ALIGNED, sums[num * wide] ALIGNED;
    const float *values[KEYS];
    struct query asking[num];
    ptrdiff_t places[num]; /* of queries, and of what they get */
    memset(asked, 0, sizeof asked);
    memset(sums, 0, sizeof sums);
    for (long r = 0; r < num; r++) {
        const long row = tile->first_row + r % per_head / per_kv;
        places[r] = (row * heads->num_heads + (first_kv_head + r / per_head) * per_kv + r % per_kv) * width;
        for (long i = 0; i < width; i++) asked[r * wide + i] = queries[places[r] + i] * how->scale;
        asking[r] = (struct query){asked + r * wide, sums + r * wide, {}, LOWEST, 0, 0};
    }
    const long last = tile->position + tile->num_rows - 1;
    const long seen = how->window > 0 && tile->position >= how->window ? tile->position - how->window + 1 : 0;
    const ptrdiff_t token_stride = heads->num_kv_heads * width;
    struct tokens tokens, next;
    find_tokens(&tokens, pages, table, token_stride, seen / KEYS * KEYS, last);
    for (long begin = seen / KEYS * KEYS; begin <= last; begin += KEYS) {
        find_tokens(&next, pages, table, token_stride, begin + KEYS, last);
        for (long r = 0; r < num; r++) {
            const long position = tile->position + r % per_head / per_kv;
            asking[r].from = how->window > 0 ? position - how->window + 1 - begin : 0;
            asking[r].to = position + 1 - begin;
        }
        for (long head = 0; head < num_kv_heads; head++) {
            const ptrdiff_t head_first = (first_kv_head + head) * width;
            load_keys(keys, pages, &tokens, &next, head_first, width, wide);
            find_values(values, scratch, pages, &tokens, head_first, width, wide);
            const long from = seen > begin ? seen - begin : 0;
            ask_all(asking + head * per_head, per_head, keys, values, from, tokens.count, wide);
        }
        tokens = next;
    }
    for (long r = 0; r < num; r++) {
        const float inverse = 1.0f / sum_of(asking[r].total);
        for (long i = 0; i < width; i++) out[places[r] + i] = sums[r * wide + i] * inverse;
    }
}

/* `queries` and `out` [rows, num_heads, head_dim]; padding rows become 0. */
void attend_rows(const struct member *me, const float *queries, const struct heads *heads, const struct attention *how,
                 const struct step *step, const struct pages *pages, float *out) {
    const long num_items = step->num_tiles * heads->num_kv_heads, row = heads->num_heads * heads->head_dim;
    if (me->index == 0) memset(out + step->stored * row, 0, (size_t)((step->rows - step->stored) * row) * sizeof *out);
    for (long item; (item = num_items - 1 - next_item(me)) >= 0;) { /* the longest of a prompt first */
        const struct tile *tile = step->tiles + item / heads->num_kv_heads;
        long kv_head = item % heads->num_kv_heads, num_kv_heads = 1;
        if (tile->num_rows == 1 && step->num_tiles >= 2 * team_size(me)) { /* all heads, as their KV lies together */
            if (kv_head > 0) continue;
            num_kv_heads = heads->num_kv_heads;
        }
        attend_tile(tile, kv_head, num_kv_heads, queries, pages, step->blocks + tile->blocks, heads, how, out);
    }
}
