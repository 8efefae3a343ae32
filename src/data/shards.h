/* Shards of WebDataset: tar files whose members come in groups, KEY.jpg and KEY.cls, one group per sample.
 *
 * All shards are listed once, when the set is opened: where the image of each sample lies, and its class. After
 * that samples are read in any order. */
#ifndef DSC_DATA_SHARDS_H
#define DSC_DATA_SHARDS_H

#include "descent/status.h"

#include <stdint.h>

/* A list of files. */
typedef struct dsc_shard_list {
    char **path;
    char *is_val; /* 1: a shard of the validation split */
    int64_t count, path_capacity, val_capacity;
    int listed; /* number of patterns whose matches were listed so far */
} dsc_shard_list;

/* The shards that `argument` stands for: a folder (its .tar files, and those of the folders in it), or a pattern
 * with *, ?, [abc], {a,b} and {000..123}. A shard belongs to the validation split when its name, or that of its
 * folder inside the given one, has the word val, valid, validation or test. */
dsc_status dsc_shards_find(const char *argument, dsc_shard_list *list) DSC_MUST_CHECK;
void dsc_shards_free(dsc_shard_list *list);

/* A sample of a shard. key and class are offsets in dsc_shard.text. */
typedef struct dsc_shard_sample {
    int64_t offset, size; /* of the image in the file */
    int64_t key, class;
} dsc_shard_sample;

typedef struct dsc_shard {
    dsc_shard_sample *samples;
    int64_t count, capacity;
    char *text; /* strings, each ending with a zero byte */
    int64_t text_used, text_capacity;
} dsc_shard;

/* Lists the samples of one file. DSC_E_FORMAT when it is no tar file, or is broken, or a sample has an image but
 * no class, or a class but no image; DSC_E_UNSUPPORTED when the build lacks libarchive. */
dsc_status dsc_shard_read(const char *path, dsc_shard *shard) DSC_MUST_CHECK;
void dsc_shard_free(dsc_shard *shard);

#endif
