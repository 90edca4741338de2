/* A whole step of a Llama-like decoder. */

#include "kernels.h"

struct layer {
    struct norm before_attention, before_mlp;
    struct product qkv, output, gate_up, down;
    struct heads heads;
    struct attention attention;
};

struct network {
    const struct layer *layers;
    struct norm last_norm;
    struct product head;
    long num_layers, width; /* width of the residual */
};

/* What a step needs between its parts, one after the other in the caller's memory. */
struct scratch {
    void *taken; /* rows as the next product takes them */
    float *made; /* its result */
    float *queries, *seen;
};

struct pass {
    const struct network *network;
    const struct pages *pages; /* of each layer */
    const struct step *step;
    float *residual; /* [rows, width]: the embedded tokens at first */
    const int64_t *kept;
    long num_kept;
    float *logits;
    struct scratch between;
};

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static size_t larger_of(size_t a, size_t b) { return a > b ? a : b; }

static size_t taken_bytes(const struct network *network, long rows) {
    const struct layer *layer = network->layers;
    const struct product *products[] = {&layer->qkv, &layer->output, &layer->gate_up, &layer->down, &network->head};
    size_t widest = 0;
    for (int i = 0; i < 5; i++) widest = larger_of(widest, row_bytes(products[i]->type, products[i]->inputs));
    return whole_lines(widest * (size_t)rows);
}

static size_t made_bytes(const struct network *network, long rows) {
    const struct layer *layer = network->layers;
    size_t widest = larger_of((size_t)layer->qkv.outputs, (size_t)layer->gate_up.outputs);
    return whole_lines(larger_of(widest, (size_t)network->width) * (size_t)rows * sizeof(float));
}

static size_t queries_bytes(const struct network *network, long rows) {
    const struct heads *heads = &network->layers->heads;
    return whole_lines((size_t)(rows * heads->num_heads * heads->head_dim) * sizeof(float));
}

/* Layers are alike in their widths. */
size_t scratch_bytes(const struct network *network, long rows) {
    return taken_bytes(network, rows) + made_bytes(network, rows) + 2 * queries_bytes(network, rows);
}

static struct scratch split(char *memory, const struct network *network, long rows) {
    struct scratch parts;
    parts.taken = memory;
    parts.made = (float *)(memory += taken_bytes(network, rows));
    parts.queries = (float *)(memory += made_bytes(network, rows));
    parts.seen = (float *)(memory + queries_bytes(network, rows));
    return parts;
}

/* The layer's attention; `delta` is what the layer before added, or NULL. Leaves its own in `made`. */
static void attend(const struct member *me, const struct pass *pass, const struct layer *layer, const struct pages *pages,
                   const float *delta) {
    const struct scratch *between = &pass->between;
    const long rows = pass->step->rows;
    norm_rows(me, pass->residual, delta, &layer->before_attention, between->taken, layer->qkv.type, rows,
              pass->network->width);
    meet(me);
    multiply_rows(me, between->taken, &layer->qkv, between->made, rows);
    meet(me);
    rope_rows(me, between->made, &layer->heads, pass->step, between->queries, pages);
    meet(me);
    attend_rows(me, between->queries, &layer->heads, &layer->attention, pass->step, pages, between->seen);
    meet(me);
    convert_rows(me, between->seen, between->taken, layer->output.type, rows, layer->output.inputs);
    meet(me);
    multiply_rows(me, between->taken, &layer->output, between->made, rows);
    meet(me);
}

/* The layer's MLP, from and to `made`. */
static void think(const struct member *me, const struct pass *pass, const struct layer *layer) {
    const struct scratch *between = &pass->between;
    const long rows = pass->step->rows;
    norm_rows(me, pass->residual, between->made, &layer->before_mlp, between->taken, layer->gate_up.type, rows,
              pass->network->width);
    meet(me);
    multiply_rows(me, between->taken, &layer->gate_up, between->made, rows);
    meet(me);
    silu_rows(me, between->made, between->taken, layer->down.type, rows, layer->down.inputs);
    meet(me);
    multiply_rows(me, between->taken, &layer->down, between->made, rows);
    meet(me);
}

/* The logits of the rows that are kept. */
static void predict(const struct member *me, const struct pass *pass) {
    const struct network *network = pass->network;
    const long width = network->width;
    const struct range mine = share_of(me, pass->num_kept);
    for (long k = mine.first; k < mine.stop; k++) {
        const long first = (long)pass->kept[k] * width;
        float sum[width];
        for (long i = 0; i < width; i++) sum[i] = pass->residual[first + i] + pass->between.made[first + i];
        norm_row(sum, &network->last_norm, pass->between.taken, network->head.type, k, width);
    }
    meet(me);
    multiply_rows(me, pass->between.taken, &network->head, pass->logits, pass->num_kept);
}

static void run_share(const struct member *me, void *what) {
    const struct pass *pass = what;
    const struct network *network = pass->network;
    for (long i = 0; i < network->num_layers; i++) {
        attend(me, pass, network->layers + i, pass->pages + i, i == 0 ? NULL : pass->between.made);
        think(me, pass, network->layers + i);
    }
    predict(me, pass);
}

/* `residual` [rows, width] are the embedded tokens, and are overwritten; `logits` [num_kept, vocabulary] are of the rows
 * `kept`, at most as many as there are. `memory` has scratch_bytes(). */
void run_network(struct team *team, const struct network *network, const struct pages *pages, const struct step *step,
                 float *residual, const int64_t *kept, long num_kept, float *logits, void *memory) {
    struct pass pass = {network, pages, step, residual, kept, num_kept, logits, split(memory, network, step->rows)};
    run_team(team, run_share, &pass);
}
