/* Many products at once: chooses the tiles that an item is cut into, and the items that share a launch.
 *
 * Large tiles read the operands least often; small ones keep all multiprocessors busy when there is little to do.
 * The choice depends only on the items and the GPU. */
#include "device/cuda/entries.h"
#include "device/cuda/grouped_kernels.h"
#include "device/cuda/halves.h"

/* ---- tiles ---- */

static int64_t terms_of(const dsc_gemm_item *item) {
    return item->a.dim[item->trans_a ? 0 : 1];
}

static int64_t tiles_of(const dsc_gemm_item *item, dsc_product_tile tile) {
    int64_t side = dsc_tile_side(tile);
    return dsc_tiles_along(item->c.dim[0], side) * dsc_tiles_along(item->c.dim[1], side);
}

/* Returns 1 if tiles of 128 compute at most a quarter more elements than tiles of 64. */
static int fits_large(const dsc_gemm_item *item) {
    return 16 * tiles_of(item, DSC_TILE_128) <= 5 * tiles_of(item, DSC_TILE_64);
}

/* The work of some items cut into tiles of one size: the terms of all tiles together, and of the longest tile. */
typedef struct load {
    double all, longest;
} load;

static void load_add(load *l, const dsc_gemm_item *item, dsc_product_tile tile) {
    double terms = (double)terms_of(item);
    l->all += terms * (double)tiles_of(item, tile);
    l->longest = terms > l->longest ? terms : l->longest;
}

/* Returns 1 if there is work for at least `tiles` of the longest tiles on every multiprocessor. */
static int load_fills(const load *l, int multiprocessors, double tiles) {
    return l->all >= tiles * l->longest * multiprocessors;
}

/* The tiles for the items that fit large ones, and for the others. halves: 1 if halves.c takes the largest items. */
typedef struct choice {
    int halves;
    dsc_product_tile large, other;
} choice;

static int is_ours(const dsc_queue *q, const dsc_gemm_item *item, const choice *c) {
    return !c->halves || !dsc_cuda_halves_takes(q, item);
}

static void choose(const dsc_queue *q, const dsc_gemm_item *items, int64_t count, choice *c) {
    int multiprocessors = dsc_cuda_at(q)->multiprocessors;
    load large = {0, 0}, other = {0, 0}, together = {0, 0};
    for (int64_t i = 0; i < count; i++) {
        if (!is_ours(q, &items[i], c))
            continue;
        if (fits_large(&items[i]))
            load_add(&large, &items[i], DSC_TILE_128);
        else
            load_add(&other, &items[i], DSC_TILE_64);
        load_add(&together, &items[i], DSC_TILE_64);
    }
    int use_large = load_fills(&large, multiprocessors, 3);
    c->other = load_fills(use_large ? &other : &together, multiprocessors, 0.5) ? DSC_TILE_64 : DSC_TILE_32;
    c->large = use_large ? DSC_TILE_128 : c->other;
}

/* ---- launches ---- */

static int aligned(const dsc_tensor *t, size_t bytes) {
    return (uintptr_t)t->data % bytes == 0 && (size_t)t->dim[1] * sizeof(float) % bytes == 0;
}

static dsc_product product_of(const dsc_gemm_item *item) {
    dsc_product p = {.a = (const float *)item->a.data,
                     .b = (const float *)item->b.data,
                     .c = (float *)item->c.data,
                     .m = (int32_t)item->c.dim[0],
                     .n = (int32_t)item->c.dim[1],
                     .k = (int32_t)terms_of(item),
                     .alpha = (float)item->alpha,
                     .beta = (float)item->beta};
    p.flags = (item->trans_a ? DSC_PRODUCT_TRANS_A : 0) | (item->trans_b ? DSC_PRODUCT_TRANS_B : 0) |
              (aligned(&item->a, 16) ? DSC_PRODUCT_WIDE_A : 0) |
              (aligned(&item->b, 16) ? DSC_PRODUCT_WIDE_B : 0) |
              (aligned(&item->c, 8) ? DSC_PRODUCT_PAIRS_C : 0);
    return p;
}

/* Inserts an item in order: those with many terms come first, so that the tiles that start last are short. */
static void insert(dsc_products *products, const dsc_gemm_item *item) {
    dsc_product p = product_of(item);
    int32_t at = products->count++;
    for (; at > 0 && products->items[at - 1].k < p.k; at--)
        products->items[at] = products->items[at - 1];
    products->items[at] = p;
}

static dsc_status launch(dsc_queue *q, dsc_products *products, dsc_product_tile tile, int fast) {
    int64_t side = dsc_tile_side(tile), tiles = 0;
    if (products->count == 0)
        return DSC_OK;
    for (int32_t i = 0; i < products->count; i++) {
        dsc_product *p = &products->items[i];
        p->first = (int32_t)tiles;
        tiles += dsc_tiles_along(p->m, side) * dsc_tiles_along(p->n, side);
        if (tiles > INT32_MAX)
            return DSC_FAIL(DSC_E_UNSUPPORTED,
                            "gemm_batch: products up to %lld x %lld have more than 2^31 tiles",
                            (long long)p->m, (long long)p->n);
    }
    products->tiles = (int32_t)tiles;
    DSC_CUDA_TRY(dsc_cuda_launch_products(dsc_cuda_at(q), products, tile, fast));
    products->count = 0;
    return DSC_OK;
}

/* Launches those of the items that use this tile and this precision. */
static dsc_status launch_some(dsc_queue *q, const dsc_gemm_item *items, int64_t count, const choice *c,
                              dsc_product_tile tile, int fast) {
    int strict = dsc_cuda_of(q->device)->strict;
    dsc_products products;
    products.count = 0;
    for (int64_t i = 0; i < count; i++) {
        const dsc_gemm_item *item = &items[i];
        if ((fits_large(item) ? c->large : c->other) != tile || (item->fast && !strict) != fast ||
            !is_ours(q, item, c))
            continue;
        insert(&products, item);
        if (products.count == DSC_PRODUCTS)
            DSC_TRY(launch(q, &products, tile, fast));
    }
    DSC_TRY(launch(q, &products, tile, fast));
    return DSC_OK;
}

static dsc_status single_batch(dsc_queue *q, const dsc_gemm_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t *c = items[i].c.dim, limit = INT32_MAX - 128;
        if (c[0] > limit || c[1] > limit || terms_of(&items[i]) > limit)
            return DSC_FAIL(DSC_E_UNSUPPORTED,
                            "gemm_batch: a product of %lld x %lld with %lld terms; 2^31 of "
                            "each are too many, cut the matrices",
                            (long long)c[0], (long long)c[1], (long long)terms_of(&items[i]));
    }
    choice c = {0};
    DSC_TRY(dsc_cuda_halves_ready(q, items, count, &c.halves));
    if (c.halves)
        DSC_TRY(dsc_cuda_halves_gemm(q, items, count));
    choose(q, items, count, &c);
    for (int tile = 0; tile < DSC_TILE_COUNT; tile++)
        for (int fast = 0; fast < 2; fast++)
            DSC_TRY(launch_some(q, items, count, &c, (dsc_product_tile)tile, fast));
    return DSC_OK;
}

static dsc_status double_batch(dsc_queue *q, const dsc_gemm_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const dsc_gemm_item *item = &items[i];
        dsc_wide_product p = {.a = (const double *)item->a.data,
                              .b = (const double *)item->b.data,
                              .c = (double *)item->c.data,
                              .m = item->c.dim[0],
                              .n = item->c.dim[1],
                              .k = terms_of(item),
                              .alpha = item->alpha,
                              .beta = item->beta,
                              .trans_a = item->trans_a,
                              .trans_b = item->trans_b};
        DSC_CUDA_TRY(dsc_cuda_launch_wide_product(dsc_cuda_at(q), &p));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_gemm_batch(dsc_queue *q, const dsc_gemm_item *items, int64_t count) {
    if (items[0].c.dtype == DSC_F64)
        DSC_TRY(double_batch(q, items, count));
    else
        DSC_TRY(single_batch(q, items, count));
    return DSC_OK;
}
