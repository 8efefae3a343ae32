/* Data sets, and loaders that turn them into batches.
 *
 * A data set is `count` samples of h x w x c numbers with a label each, or with a label for each position: the next
 * token in a text, the class of each pixel of an image (dsc_dataset_label_count). It is opened by name
 * (dsc_dataset_open), or made of the caller's memory (dsc_dataset_from_memory) or of a function of the
 * caller's that makes one sample (dsc_dataset_from_callback). A sample is a pure function of (data set,
 * index, seed, epoch), whatever the number of ranks and threads.
 *
 * Functions that return a status refuse a NULL object with DSC_E_INVALID; all others must not be passed NULL,
 * unless they say otherwise. Strings that are passed in are copied. Structs whose first member is `size` are
 * read during the call only, and later versions may append members: fill them in with their init function.
 * Structs without it never change. */
#ifndef DSC_DATA_H
#define DSC_DATA_H

#include "descent/device.h"
#include "descent/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_dataset dsc_dataset;
typedef struct dsc_loader dsc_loader;

typedef enum dsc_split { DSC_SPLIT_TRAIN, DSC_SPLIT_VAL } dsc_split;

typedef struct dsc_data_options {
    size_t size;
    /* Seed of drawn images (synthetic) and of augmentation; default 42. */
    uint64_t seed;
    /* imagefolder, webdataset: side of the crop; 0 (default): 224. masks: the same; 0: whole images. */
    int64_t image_size;
    /* The part of the training samples, of every class alike and chosen by `seed`, that is the validation split,
     * whether or not the set has one; the rest is the training split. 0 (default): the set's own splits. */
    double val_split;
    /* imagefolder and webdataset, how images are formed without augmentation: the shorter side becomes `resize`
     * pixels, and the middle is cut out; 0 (default): round(image_size * 256 / 224). A byte b becomes
     * (b / 255 - mean) / std, by channel, also with augmentation; NULL (default): ImageNet's. The arrays of three
     * numbers are copied. Checkpoints say both, so that a model sees images as it did in training. */
    int64_t resize;
    const double *mean, *std;
    /* tokens and text: the length T of a sequence; 0 (default): 256. */
    int64_t context;
    /* tokens and text: the size of the vocabulary, which is the number of classes; 0 (default): the tokenizer's own, and
     * 50257, GPT-2's, for files of tokens without a tokens.json. */
    int64_t vocabulary;
    /* tokens and text: 0 (default): the label of a position is the next token. Above 0, masked language modelling: each
     * token is with this probability (0.15 is usual) one to be predicted, and others have label -1. 80 % of those become
     * `mask_token`, 10 % a token drawn from the vocabulary, 10 % stay. mask_token -1 (default): a token after the last of
     * the vocabulary, so that there is one class more. */
    double mask;
    int64_t mask_token;
    /* masks: the standard deviation in pixels of the random displacements that deform training images, 10 in the paper of
     * U-Net; 0 (default): they are not deformed. */
    double elastic;
    /* masks: pixels at each of the four sides of a sample that have no labels, for models whose output is that much smaller
     * than their input; 0 (default): all have one. The labelled middle of a sample, image_size - 2 margin pixels high and
     * wide, lies in the image; beyond the borders of the image the rest is mirrored. */
    int64_t margin;
} dsc_data_options;
DSC_API void dsc_data_options_init_sized(dsc_data_options *options, size_t size);
#define dsc_data_options_init(options) dsc_data_options_init_sized((options), sizeof *(options))

/* ---- data sets by name ---- */

/* Opens KIND or KIND:ARGUMENT: "synthetic", "synthetic:N" (N training samples), "cifar10:DIR",
 * "cifar100:DIR", "mnist:DIR" or "mnist:DIR/NAME" (any IDX set, raw or .gz; files of NAME-, as EMNIST's),
 * "imagefolder:DIR" (DIR/train/CLASS/FILE, DIR/val/CLASS/FILE), "webdataset:DIR" or "webdataset:PATTERN" (tar files
 * of KEY.jpg and KEY.cls), "tokens:DIR" (train.bin and val.bin, as dsc_tokenize writes them) or "tokens:FILE",
 * "text:PATH", "text:chars:PATH" (the same) or "text:bytes:PATH" (a file or all files of a folder, a token for each
 * distinct byte of the text, or for each of the 256 bytes), "masks:DIR" (DIR/image/NAME.png and DIR/label/NAME.png,
 * whose values are classes), or a kind that was registered. options may be NULL. DSC_E_INVALID lists the known kinds;
 * DSC_E_NOT_FOUND says what to download and where to put it; DSC_E_FORMAT names the file and the
 * offending value. */
DSC_API dsc_status dsc_dataset_open(const char *spec, dsc_split split, const dsc_data_options *options,
                                    dsc_dataset **out) DSC_MUST_CHECK;
/* Accepts NULL and *dataset == NULL. Loaders of the data set must be gone. */
DSC_API void dsc_dataset_close(dsc_dataset **dataset);

/* A kind of data set that dsc_dataset_open, and with it `data` of the trainer, finds by its name. */
typedef struct dsc_dataset_kind {
    size_t size;
    /* The part of a spec before the colon: letters, digits, '-', '_' and '.'. */
    const char *name;
    /* The whole spec as messages show it, for example "moons:COUNT"; NULL: the name. */
    const char *usage;
    /* 1: a spec without an argument is refused before `open` is called. */
    int needs_argument;
    /* Passed to `open`; stays the caller's and must live as long as the process. */
    void *context;
    /* Makes the data set, usually with one of the two functions below; *out then belongs to the caller of
     * dsc_dataset_open. argument: the part of the spec after the colon, or NULL. options is never NULL. */
    dsc_status (*open)(void *context, const char *argument, dsc_split split, const dsc_data_options *options,
                       dsc_dataset **out);
    /* 0 (default): `open` makes the whole training split when options->val_split is above 0, and the library takes the
     * validation split from it. 1: `open` heeds val_split by itself. */
    int own_val_split;
} dsc_dataset_kind;
DSC_API void dsc_dataset_kind_init_sized(dsc_dataset_kind *kind, size_t size);
#define dsc_dataset_kind_init(kind) dsc_dataset_kind_init_sized((kind), sizeof *(kind))
/* Adds a kind for the rest of the process; a name that is in use is refused (DSC_E_INVALID). Thread-safe.
 * Every rank registers for itself. */
DSC_API dsc_status dsc_dataset_register(const dsc_dataset_kind *kind) DSC_MUST_CHECK;

/* The names of all kinds, terminated by NULL. Kinds that are registered later appear in the same list. */
DSC_API const char *const *dsc_dataset_names(void);
/* The whole spec of a kind as messages show it, "cifar10:DIR"; "" for an unknown name. */
DSC_API const char *dsc_dataset_usage(const char *name);

/* ---- data sets of the caller's own ---- */

typedef struct dsc_memory_data {
    size_t size;
    /* For messages; NULL (default): "memory". */
    const char *name;
    /* Samples, their height, width and channels; vectors of features are 1 x 1 x features. */
    int64_t count, h, w, c;
    int64_t classes;
    /* [count, h, w, c], of dtype DSC_F32 (default), given to the network as it is; or DSC_U8, at most 4
     * channels: the network sees (value / 255 - mean) / std. */
    const void *images;
    dsc_dtype dtype;
    /* [count, label_count], each 0 to classes - 1; checked once. */
    const int32_t *labels;
    /* 0 (default): images and labels stay the caller's, who neither changes nor frees them before
     * dsc_dataset_close. 1: they are copied. */
    int copy;
    /* DSC_U8 only: [c] each; NULL (default): 0 and 1. */
    const double *mean, *std;
    /* DSC_U8 only, and only where a loader augments. pad: the image gets a border of this many black pixels,
     * and a crop of its original size is taken at a random place. flip 1: the image is mirrored with
     * probability 1/2. Both 0 by default. */
    int64_t pad;
    int flip;
    /* Seed of the augmentation, default 42. */
    uint64_t seed;
    /* Labels per sample; 0 (default): 1. With several, -1 stands for a position without a label, and there is no
     * augmentation. */
    int64_t label_count;
} dsc_memory_data;
DSC_API void dsc_memory_data_init_sized(dsc_memory_data *data, size_t size);
#define dsc_memory_data_init(data) dsc_memory_data_init_sized((data), sizeof *(data))
DSC_API dsc_status dsc_dataset_from_memory(const dsc_memory_data *data, dsc_dataset **out) DSC_MUST_CHECK;

typedef struct dsc_callback_data {
    size_t size;
    /* For messages; NULL (default): "callback". */
    const char *name;
    int64_t count, h, w, c;
    int64_t classes;
    /* Passed to both functions. */
    void *context;
    /* Writes sample `index` as h*w*c floats to x and its label, 0 to classes - 1, to label[label_count]. Called by
     * several threads at once, in any order and more than once for a sample: with equal arguments it must
     * write equal results. augment 0: the sample as for evaluation; 1: a random variant that depends on index
     * and epoch only. If it returns anything but DSC_OK, dsc_loader_next fails with that status and with the
     * message of dsc_error_set. */
    dsc_status (*sample)(void *context, int64_t index, int augment, int64_t epoch, float *x, int32_t *label);
    /* Called once by dsc_dataset_close; NULL (default): the context stays the caller's. */
    void (*destroy)(void *context);
    /* Labels per sample; 0 (default): 1. With several, -1 stands for a position without a label. */
    int64_t label_count;
    /* The share of labels that are not -1 on average, as the trainer divides gradients by their expected number; 0
     * (default): 1. A set in memory is counted. */
    double labelled;
} dsc_callback_data;
DSC_API void dsc_callback_data_init_sized(dsc_callback_data *data, size_t size);
#define dsc_callback_data_init(data) dsc_callback_data_init_sized((data), sizeof *(data))
/* When it fails, `destroy` has not been called and the context is still the caller's. */
DSC_API dsc_status dsc_dataset_from_callback(const dsc_callback_data *data, dsc_dataset **out) DSC_MUST_CHECK;

/* ---- what a data set holds ---- */

typedef struct dsc_dataset_info {
    int64_t count, h, w, c, classes;
    const char *name; /* belongs to the data set */
} dsc_dataset_info;
/* All zero, with the name "", for NULL. */
DSC_API dsc_dataset_info dsc_dataset_get_info(const dsc_dataset *dataset);
/* Labels per sample: 1, or one for each position: the T tokens of a sequence, the h*w pixels of an image, or those of its
 * middle (dsc_data_options.margin). 0 for NULL. */
DSC_API int64_t dsc_dataset_label_count(const dsc_dataset *dataset);
/* masks: how many images the samples of the validation split are tiles of. 0: samples are no tiles, or NULL. */
DSC_API int64_t dsc_dataset_pictures(const dsc_dataset *dataset);
/* What the tokens of a data set mean, owned by it; NULL: it has no tokens, or nothing says what they mean. */
DSC_API const dsc_tokenizer *dsc_dataset_tokenizer(const dsc_dataset *dataset);
/* How many bytes of text a token stands for on average, which turns a loss per token into bits per byte; 0: unknown. */
DSC_API double dsc_dataset_bytes_per_token(const dsc_dataset *dataset);
/* The name of a class, which belongs to the data set; NULL when its classes have no names, or not so many. */
DSC_API const char *dsc_dataset_class_name(const dsc_dataset *dataset, int64_t index);
/* How the bytes of images become the numbers that the network sees: (value / 255 - mean) / std, with a mean
 * and a std for each of the c channels. Returns 0, and writes nothing, when samples are not made of bytes. */
DSC_API int dsc_dataset_normalisation(const dsc_dataset *dataset, double *mean, double *std);
/* Sample `index` as h*w*c normalised floats, and its labels: `label` has room for dsc_dataset_label_count of them, of
 * which -1 stands for none. augment 0: as for evaluation. Thread-safe. */
DSC_API dsc_status dsc_dataset_sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                                      float *x, int32_t *label) DSC_MUST_CHECK;

/* A sample that could not be read, and the message that says why. */
enum { DSC_BAD_MESSAGE = 1016 };
typedef struct dsc_bad_sample {
    int64_t index;
    char message[DSC_BAD_MESSAGE];
} dsc_bad_sample;

typedef struct dsc_check_options {
    size_t size;
    int threads;   /* that read, 1 (default) to 1024 */
    void *context; /* passed to both functions */
    /* Called about ten times a second and at the end: samples read so far, and how many of them are bad. NULL
     * (default): it is not called. */
    void (*progress)(void *context, int64_t done, int64_t bad);
    /* Called at the end for every bad sample, in the order of their indices. NULL (default): only their number
     * is reported. */
    void (*bad)(void *context, const dsc_bad_sample *sample);
} dsc_check_options;
DSC_API void dsc_check_options_init_sized(dsc_check_options *options, size_t size);
#define dsc_check_options_init(options) dsc_check_options_init_sized((options), sizeof *(options))
/* Reads every sample once, as for evaluation; *bad (may be NULL) is how many of them failed. Both functions of
 * the options are called by the calling thread. options may be NULL. Fails when there is no memory. Blocks. */
DSC_API dsc_status dsc_dataset_check(const dsc_dataset *dataset, const dsc_check_options *options,
                                     int64_t *bad) DSC_MUST_CHECK;

/* ---- loaders ---- */

typedef struct dsc_loader_options {
    size_t size;
    int64_t batch;   /* samples per rank and batch; default 128 */
    int rank, ranks; /* default 0 of 1 */
    int threads;     /* that prepare batches ahead, at least 1; default 1 */
    int depth;       /* batches prepared ahead; default 3 */
    uint64_t seed;   /* of the permutation; default 42 */
    int shuffle;     /* 1 (default): a seeded permutation per epoch; 0: in order */
    int augment;     /* 1 (default): samples are augmented */
    /* 0 (default): an incomplete last global batch is dropped; 1: it is delivered, and missing rows have
     * label -1, in all places of a row with several. */
    int keep_last;
    dsc_dtype dtype; /* of x: DSC_F32 (default); on a GPU also a half type, except for tokens */
    /* 0 (default): an image file that cannot be read makes dsc_loader_next fail. 1: batches keep their size.
     * With keep_last 0 another sample of the set takes its place, a pure function of (seed, epoch, sample);
     * with keep_last 1 its row has label -1. dsc_loader_take_bad names the file. Samples of the caller's own
     * data sets are never replaced. */
    int skip_bad;
    /* Further augmentation, for training; all 0 (off) by default, except for randaugment_ops. Every sample may be mixed
     * with another one of the epoch: mixup adds up to half of it, CutMix pastes a box of it, with shares from
     * Beta(alpha, alpha); with both, each is used half of the time. dsc_loader_mixed_labels has the labels. Data sets
     * with several labels per sample refuse all of them. */
    double mixup, cutmix;  /* alpha, up to 100 */
    double random_erasing; /* probability that a box of 2 to 33 % of the area is set to 0 */
    double randaugment;    /* magnitude of RandAugment's operations, up to 30; for images made of bytes */
    int randaugment_ops;   /* operations per sample, 2 */
    /* webdataset: the shards are shuffled, and then the samples among every so many, so that files are read
     * almost in their order. 0 (default): all samples are shuffled at once. */
    int64_t shuffle_buffer;
} dsc_loader_options;
DSC_API void dsc_loader_options_init_sized(dsc_loader_options *options, size_t size);
#define dsc_loader_options_init(options) dsc_loader_options_init_sized((options), sizeof *(options))

/* One rank's part of a global batch. The tensors belong to the loader and are valid until its next
 * dsc_loader_next. */
typedef struct dsc_batch {
    dsc_tensor x;      /* [batch, h, w, c] */
    dsc_tensor labels; /* I32 [batch * dsc_dataset_label_count], those of a sample next to each other */
    int64_t epoch;
    int64_t position; /* global samples of this epoch before this batch */
} dsc_batch;

/* Batches in memory of `device`; on a GPU x and labels have the same address for every batch. With p ranks of
 * batch b, batch t of an epoch is samples [t p b, (t + 1) p b) of its permutation, of which rank r gets the
 * r-th b. Epoch follows epoch without end. The data set stays the caller's and must outlive the loader.
 * options may be NULL. Not collective. DSC_E_INVALID when an epoch has no whole global batch (keep_last
 * 0). */
DSC_API dsc_status dsc_loader_create(const dsc_dataset *dataset, dsc_device *device,
                                     const dsc_loader_options *options, dsc_loader **out) DSC_MUST_CHECK;
/* Accepts NULL and *loader == NULL. */
DSC_API void dsc_loader_destroy(dsc_loader **loader);
/* Batches per epoch at this number of ranks. */
DSC_API int64_t dsc_loader_batches(const dsc_loader *loader);
/* Continues at (epoch, position): the next batch starts with that sample of that epoch's permutation, or with
 * the next epoch when fewer samples than a global batch are left and keep_last is 0. */
DSC_API dsc_status dsc_loader_seek(dsc_loader *loader, int64_t epoch, int64_t position) DSC_MUST_CHECK;
/* The next batch, for work that is put into `queue` from now on. Blocks until the batch is prepared, but not
 * until it has been copied to the device. Failures of the preparing threads are returned here. */
DSC_API dsc_status dsc_loader_next(dsc_loader *loader, dsc_queue *queue, dsc_batch *batch) DSC_MUST_CHECK;

/* The labels of the samples that those of the last batch were mixed with (I32[batch]), and their shares (F32[batch], 0
 * to 1/2), as dsc_exec_mix_labels takes them; valid as long as the batch. Returns 0, and writes nothing, when the loader
 * mixes no samples or has not delivered a batch yet. */
DSC_API int dsc_loader_mixed_labels(const dsc_loader *loader, dsc_tensor *others, dsc_tensor *shares);

/* With skip_bad: the samples of the batches delivered so far that could not be read, in the order of the
 * batches, at most `room` of them; the loader then forgets them. Samples that were drawn as a replacement do
 * not count, so each sample is reported at most once an epoch, on whatever number of ranks. Returns how many
 * were written to `out`. out NULL: forgets all of them, and returns how many there were. */
DSC_API int64_t dsc_loader_take_bad(dsc_loader *loader, dsc_bad_sample *out, int64_t room);

#ifdef __cplusplus
}
#endif
#endif
