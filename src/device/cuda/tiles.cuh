/* Launches for several items of different sizes, each of which has its own range of blocks. */
#ifndef DSC_DEVICE_CUDA_TILES_CUH
#define DSC_DEVICE_CUDA_TILES_CUH

#include "device/cuda/launch.h"

/* Passed by value: 4000 bytes at most. first[i] is the first block of item i, first[count] the number of blocks. */
template <class Item, int MOST> struct dsc_tiles {
    Item item[MOST];
    unsigned first[MOST + 1];
    int count;
};

template <class Item, int MOST> void dsc_tiles_clear(dsc_tiles<Item, MOST> *t) {
    t->count = 0;
    t->first[0] = 0;
}

/* Adds an item, unless it has no blocks. */
template <class Item, int MOST>
void dsc_tiles_add(dsc_tiles<Item, MOST> *t, const Item &item, int64_t blocks) {
    if (blocks <= 0)
        return;
    t->item[t->count] = item;
    t->first[t->count + 1] = t->first[t->count] + (unsigned)blocks;
    t->count++;
}

template <class Item, int MOST> unsigned dsc_tiles_blocks(const dsc_tiles<Item, MOST> *t) {
    return t->first[t->count];
}

/* Returns the item of this block; `block` becomes the block's number within the item. */
template <class Item, int MOST>
__device__ __forceinline__ const Item &dsc_tiles_find(const dsc_tiles<Item, MOST> &t, int64_t &block) {
    int low = 0, high = t.count - 1;
    while (low < high) { /* finds the last item that begins at or before this block */
        int middle = (low + high + 1) / 2;
        if (t.first[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle - 1;
    }
    block = blockIdx.x - t.first[low];
    return t.item[low];
}

#endif
