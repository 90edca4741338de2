/* A whole step of a Llama-like decoder. */

#include "kernels.h"

struct layer {
    struct norm before_attention, before_mlp;
    struct product qkv, output, gate_up, down;
    struct heads heads;
    struct attention attention;
};

/* What a step needs between its parts, one after the other in the caller's memory. */
struct scratch {
    void *taken;    /* rows as the next product takes them */
    float *made;    /* its result */
    float *queries, *seen;
};

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static size_t larger_of(size_t a, size_t b) { return a > b ? a : b; }

static size_t taken_bytes(const struct layer *layer, long rows) {
    size_t widest = 0;
    const struct product *products[] = {&layer->qkv, &layer->output, &layer->gate_up, &layer->down};
    for (int i = 0; i < 4; i++) widest = larger_of(widest, row_bytes(products[i]->type, products[i]->inputs));
    return whole_lines(widest * (size_t)rows);
}

static size_t made_bytes(const struct layer *layer, long rows) {
    size_t widest = larger_of(larger_of((size_t)layer->qkv.outputs, (size_t)layer->gate_up.outputs), (size_t)layer->down.outputs);
    return whole_lines(widest * (size_t)rows * sizeof(float));
}

static size_t queries_bytes(const struct layer *layer, long rows) {
    return whole_lines((size_t)(rows * layer->heads.num_heads * layer->heads.head_dim) * sizeof(float));
}

/* Layers are alike in their widths. */
size_t scratch_bytes(const struct layer *layer, long rows) {
    return taken_bytes(layer, rows) + made_bytes(layer, rows) + 2 * queries_bytes(layer, rows);
}

static struct scratch split(char *memory, const struct layer *layer, long rows) {
    struct scratch parts;
    parts.taken = memory;
    parts.made = (float *)(memory += taken_bytes(layer, rows));
    parts.queries = (float *)(memory += made_bytes(layer, rows));
    parts.seen = (float *)(memory + queries_bytes(layer, rows));
    return parts;
}

/* residual [rows, width]: the embedded tokens, and then what the last norm takes. pages[i] are layer i's. */
void run_layers(const struct layer *layers, long num_layers, const struct pages *pages, const struct step *step,
                float *residual, long width, void *memory) {
    const struct scratch between = split(memory, layers, step->rows);
    const float *delta = NULL;
    for (long i = 0; i < num_layers; i++) {
        const struct layer *layer = layers + i;
        const long rows = step->rows;
        const int threads = step->threads;
        norm_rows(residual, delta, &layer->before_attention, between.taken, layer->qkv.type, rows, width, threads);
        multiply_rows(between.taken, &layer->qkv, between.made, rows, threads);
        rope_rows(between.made, &layer->heads, step, between.queries, pages + i);
        attend_rows(between.queries, &layer->heads, &layer->attention, step, pages + i, between.seen);
        convert_rows(between.seen, between.taken, layer->output.type, rows, layer->output.inputs, threads);
        multiply_rows(between.taken, &layer->output, between.made, rows, threads);
        norm_rows(residual, between.made, &layer->before_mlp, between.taken, layer->gate_up.type, rows, width, threads);
        multiply_rows(between.taken, &layer->gate_up, between.made, rows, threads);
        silu_rows(between.made, between.taken, layer->down.type, rows, layer->down.inputs, threads);
        multiply_rows(between.taken, &layer->down, between.made, rows, threads);
        delta = between.made;
    }
    for (long i = 0; delta != NULL && i < step->rows * width; i++) residual[i] += delta[i];
}
