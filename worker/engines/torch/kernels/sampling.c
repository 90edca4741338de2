/* Draws tokens from logits. A row's token depends on that row alone. */

#include "kernels.h"

#include <stdlib.h>

/* One token to draw, from logits that have all penalties in them; `u` is uniform in [0, 1). */
struct draw {
    const float *logits;
    double u;
    float temperature, min_p, top_p;
    long top_k; /* 0: no limit */
    long token; /* the result; -1 where no logit is finite */
};

struct draws {
    struct draw *draws;
    long num, vocabulary;
    float *weights; /* [members, vocabulary] */
};

/* Which weights are kept: those above `least`, and the first `num_equal` that equal it. */
struct cut {
    float least;
    long num_equal;
};

static const float COLDEST = 1e-6f; /* nothing but the best has a chance below */

enum { BUCKET_BITS = 19, BUCKETS = 1 << (31 - BUCKET_BITS) }; /* weights of one bucket are within a sixteenth */

static inline long bucket_of(float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return bits >> BUCKET_BITS;
}

static int is_smaller(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The fewest of the largest weights at or above `floor` that are `count` or weigh `share` of them all. */
static struct cut find_cut(const float *weights, long num, float floor, double count, double share) {
    double mass[BUCKETS] = {0}, total = 0.0;
    int32_t sizes[BUCKETS] = {0};
    for (long i = 0; i < num; i++) {
        if (weights[i] < floor || weights[i] == 0.0f) continue;
        mass[bucket_of(weights[i])] += weights[i];
        sizes[bucket_of(weights[i])]++;
    }
    for (long b = 0; b < BUCKETS; b++) total += mass[b];
    double before = 0.0;
    const double wanted = share * total;
    long bucket = BUCKETS - 1;
    for (; bucket > 0; bucket--) {
        if (sizes[bucket] >= count || before + mass[bucket] >= wanted) break;
        count -= sizes[bucket];
        before += mass[bucket];
    }
    if (sizes[bucket] == 0) return (struct cut){floor, num};
    float *members = malloc((size_t)sizes[bucket] * sizeof *members);
    if (members == NULL) return (struct cut){floor, num};
    long size = 0;
    for (long i = 0; i < num; i++)
        if (weights[i] >= floor && weights[i] != 0.0f && bucket_of(weights[i]) == bucket) members[size++] = weights[i];
    qsort(members, (size_t)size, sizeof *members, is_smaller);
    struct cut cut = {members[0], 0};
    for (long i = 0; i < size && count > 0 && before < wanted; i++, count--) {
        cut.num_equal = members[i] == cut.least ? cut.num_equal + 1 : 1;
        cut.least = members[i];
        before += members[i];
    }
    free(members);
    return cut;
}

/* e^((logit - peak) / temperature), with 0 for what is too unlikely ever to be drawn. */
static void weigh(const struct draw *draw, float peak, float *weights, long num) {
    const float inverse = 1.0f / draw->temperature;
    for (long i = 0; i < num; i += LANES) {
        float part[LANES];
        const long count = num - i < LANES ? num - i : LANES;
        for (long lane = 0; lane < LANES; lane++) part[lane] = lane < count ? draw->logits[i + lane] : peak;
        vector x = (*(vector *)part - peak) * inverse;
        vector weight = choose(x < -87.0f, (vector){}, exponentials(x));
        memcpy(weights + i, &weight, (size_t)count * sizeof *weights);
    }
}

/* Inverse transform sampling in the order of the vocabulary: the first token whose cumulated weight exceeds u. */
static long first_beyond(const float *weights, long num, struct cut cut, double u) {
    double total = 0.0, sum = 0.0;
    long num_equal = cut.num_equal, last = -1;
    for (long i = 0; i < num; i++)
        if (weights[i] > cut.least || (weights[i] == cut.least && num_equal-- > 0)) total += weights[i];
    num_equal = cut.num_equal;
    for (long i = 0; i < num; i++) {
        if (weights[i] == 0.0f) continue;
        if (!(weights[i] > cut.least || (weights[i] == cut.least && num_equal-- > 0))) continue;
        sum += weights[i];
        last = i;
        if (sum > u * total) break;
    }
    return last;
}

/* min_p, then top_k, whose equals are all kept, then top_p, of whose equals the first are. */
static long draw_one(const struct draw *draw, float *weights, long num) {
    long best = 0;
    for (long i = 1; i < num; i++)
        if (draw->logits[i] > draw->logits[best]) best = i;
    const float peak = draw->logits[best];
    if (!(__builtin_fabsf(peak) < __builtin_inff())) return -1;
    if (draw->temperature < COLDEST) return best;
    weigh(draw, peak, weights, num);
    struct cut cut = {draw->min_p, num};
    if (draw->top_k > 0 && draw->top_k < num) {
        cut = find_cut(weights, num, 0.0f, (double)draw->top_k, 2.0);
        cut = (struct cut){cut.least > draw->min_p ? cut.least : draw->min_p, num};
    }
    if (draw->top_p < 1.0f) cut = find_cut(weights, num, cut.least, (double)num, draw->top_p);
    return first_beyond(weights, num, cut, draw->u);
}

static void draw_share(const struct member *me, void *what) {
    struct draws *draws = what;
    float *weights = draws->weights + me->index * draws->vocabulary;
    for (long i; (i = next_item(me)) < draws->num;)
        draws->draws[i].token = draw_one(draws->draws + i, weights, draws->vocabulary);
}

void draw_tokens(struct team *team, struct draw *draws, long num, long vocabulary, float *weights) {
    struct draws all = {draws, num, vocabulary, weights};
    run_team(team, draw_share, &all);
}
