/* Data sets, and loaders that turn them into batches.
 *
 * A data set consists of `count` samples of h x w x c numbers, each with one label, or with one label for each
 * position: the next token in a text, the class of each pixel of an image (dsc_dataset_label_count). It is opened
 * by name (dsc_dataset_open), or created from the caller's memory (dsc_dataset_from_memory) or from a function of
 * the caller's that computes one sample (dsc_dataset_from_callback). A sample is a pure function of (data set,
 * index, seed, epoch), whatever the number of ranks and threads.
 *
 * Functions that return a status refuse a NULL object with DSC_E_INVALID; no other function may be passed NULL
 * unless its comment allows it. Strings that are passed in are copied. Structs whose first member is `size` are
 * read during the call only, and later versions may append members: initialise them with their init function.
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
    /* The seed of generated images (synthetic) and of augmentation; default 42. */
    uint64_t seed;
    /* imagefolder, webdataset: side of the crop; 0 (default): 224. masks: the same; 0: whole images. */
    int64_t image_size;
    /* Above 0: this fraction of the training samples, the same of every class and chosen by `seed`, becomes the
     * validation split, even if the set has one of its own; the rest is the training split. 0 (default): the set's own
     * splits. */
    double val_split;
    /* imagefolder and webdataset: without augmentation, the shorter side of an image is scaled to `resize` pixels and
     * the middle is cropped; 0 (default): round(image_size * 256 / 224). With or without augmentation, a byte b becomes
     * (b / 255 - mean) / std by channel; NULL (default): ImageNet's numbers. The arrays of three numbers are copied.
     * Checkpoints store all of them, so that a model sees images as it did in training. */
    int64_t resize;
    const double *mean, *std;
    /* tokens and text: the length T of a sequence; 0 (default): 256. */
    int64_t context;
    /* tokens and text: the size of the vocabulary, which is the number of classes; 0 (default): the tokenizer's own, or
     * 50257, GPT-2's, for files of tokens without a tokens.json. */
    int64_t vocabulary;
    /* tokens and text. 0 (default): the label of a position is the next token. Above 0: masked language modelling,
     * where each token is selected for prediction with this probability (0.15 is usual), and all others have label -1.
     * Of the selected tokens 80 % are replaced by `mask_token`, 10 % by a random token of the vocabulary, and 10 % are
     * kept. mask_token -1 (default): an additional token after the last of the vocabulary, so that there is one more
     * class. */
    double mask;
    int64_t mask_token;
    /* masks: the standard deviation, in pixels, of the random displacements that deform training images, 10 in the
     * U-Net paper; 0 (default): no deformation. */
    double elastic;
    /* masks: the number of pixels on each of the four sides of a sample that have no labels, for models whose output is
     * that much smaller than their input; 0 (default): all pixels have labels. The labelled middle of a sample,
     * image_size - 2 margin pixels high and wide, lies within the image; the pixels around it that are outside the
     * image are mirrored from the inside. */
    int64_t margin;
} dsc_data_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_data_options_init_sized(dsc_data_options *options, size_t size);
#define dsc_data_options_init(options) dsc_data_options_init_sized((options), sizeof *(options))

/* ---- data sets by name ---- */

/* Opens one split of the data set `spec`, which is KIND or KIND:ARGUMENT:
 *
 *   synthetic, synthetic:N          generated images; N training samples
 *   cifar10:DIR, cifar100:DIR
 *   mnist:DIR, mnist:DIR/NAME       any IDX set, raw or .gz; with NAME, files that begin with NAME-, like EMNIST's
 *   imagefolder:DIR                 DIR/train/CLASS/FILE, DIR/val/CLASS/FILE
 *   webdataset:DIR or :PATTERN      tar files of KEY.jpg and KEY.cls
 *   tokens:DIR or :FILE             DIR: train.bin and val.bin, as dsc_tokenize writes them
 *   text:PATH, text:chars:PATH      a file, or all files of a folder; one token for each distinct byte of the text
 *   text:bytes:PATH                 the same, with one token for each of the 256 bytes
 *   masks:DIR                       DIR/image/NAME.png and DIR/label/NAME.png, whose values are classes
 *
 * or a kind that was registered. The caller closes *out with dsc_dataset_close. options may be NULL: the defaults. The
 * message of DSC_E_INVALID lists the known kinds; that of DSC_E_NOT_FOUND says what to download and where to put it;
 * that of DSC_E_FORMAT names the file and the offending value. */
DSC_API dsc_status dsc_dataset_open(const char *spec, dsc_split split, const dsc_data_options *options,
                                    dsc_dataset **out) DSC_MUST_CHECK;
/* Frees a data set and sets *dataset to NULL. Its loaders must have been destroyed before. Accepts NULL and
 * *dataset == NULL. */
DSC_API void dsc_dataset_close(dsc_dataset **dataset);

/* The definition of a kind of data set that dsc_dataset_open, and so the option `data` of the trainer, finds by its
 * name. */
typedef struct dsc_dataset_kind {
    size_t size;
    /* The part of a spec before the colon, of letters, digits, '-', '_' and '.'. */
    const char *name;
    /* The whole spec as messages show it, for example "moons:COUNT"; NULL (default): the name. */
    const char *usage;
    /* 1: a spec without an argument is refused before `open` is called. Default 0. */
    int needs_argument;
    /* Passed to `open`. It stays the caller's and must live as long as the process. */
    void *context;
    /* Creates the data set, usually with dsc_dataset_from_memory or dsc_dataset_from_callback; *out then belongs to the
     * caller of dsc_dataset_open. argument: the part of the spec after the colon, or NULL. options is never NULL. */
    dsc_status (*open)(void *context, const char *argument, dsc_split split, const dsc_data_options *options,
                       dsc_dataset **out);
    /* 0 (default): if options->val_split is above 0, `open` creates the whole training split, from which the library
     * takes the validation split. 1: `open` handles val_split itself. */
    int own_val_split;
} dsc_dataset_kind;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_dataset_kind_init_sized(dsc_dataset_kind *kind, size_t size);
#define dsc_dataset_kind_init(kind) dsc_dataset_kind_init_sized((kind), sizeof *(kind))
/* Registers a kind for the rest of the process; a name that is in use is refused (DSC_E_INVALID). Thread-safe.
 * Every rank must register the kind itself. */
DSC_API dsc_status dsc_dataset_register(const dsc_dataset_kind *kind) DSC_MUST_CHECK;

/* Returns the names of all kinds, terminated by NULL. The list belongs to the library; kinds that are registered later
 * appear in the same list. */
DSC_API const char *const *dsc_dataset_names(void);
/* Returns the whole spec of a kind as messages show it, such as "cifar10:DIR"; "" for an unknown name. */
DSC_API const char *dsc_dataset_usage(const char *name);

/* ---- data sets of the caller's own ---- */

typedef struct dsc_memory_data {
    size_t size;
    /* The name in messages; NULL (default): "memory". */
    const char *name;
    /* The number of samples, their height, width and channels; vectors of features are 1 x 1 x features. */
    int64_t count, h, w, c;
    int64_t classes;
    /* [count, h, w, c]. dtype DSC_F32 (default): the network gets the numbers as they are. DSC_U8, with at most 4
     * channels: the network gets (value / 255 - mean) / std. */
    const void *images;
    dsc_dtype dtype;
    /* [count, label_count], each from 0 to classes - 1; checked once, when the set is created. */
    const int32_t *labels;
    /* 0 (default): images and labels stay the caller's, who neither changes nor frees them before
     * dsc_dataset_close. 1: they are copied. */
    int copy;
    /* DSC_U8 only: [c] each; NULL (default): 0 and 1. */
    const double *mean, *std;
    /* DSC_U8 only, and only if the loader augments. pad: the image gets a border of this many black pixels, and a crop
     * of its original size is taken at a random place. flip 1: the image is mirrored left to right with probability
     * 1/2. Both 0 by default. */
    int64_t pad;
    int flip;
    /* The seed of the augmentation; default 42. */
    uint64_t seed;
    /* The number of labels per sample; 0 (default): 1. With several, -1 stands for a position without a label, and
     * there is no augmentation. */
    int64_t label_count;
} dsc_memory_data;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_memory_data_init_sized(dsc_memory_data *data, size_t size);
#define dsc_memory_data_init(data) dsc_memory_data_init_sized((data), sizeof *(data))
/* Creates a data set from arrays in memory. The caller closes *out with dsc_dataset_close. */
DSC_API dsc_status dsc_dataset_from_memory(const dsc_memory_data *data, dsc_dataset **out) DSC_MUST_CHECK;

typedef struct dsc_callback_data {
    size_t size;
    /* The name in messages; NULL (default): "callback". */
    const char *name;
    int64_t count, h, w, c;
    int64_t classes;
    /* Passed to both functions. */
    void *context;
    /* Writes sample `index` as h*w*c floats to x, and its labels, each from 0 to classes - 1, to label[label_count].
     * Called by several threads at once, in any order and more than once for a sample: equal arguments must always give
     * equal results. augment 0: the sample as for evaluation; 1: a random variant that depends on index and epoch
     * only. If it returns anything but DSC_OK, dsc_loader_next fails with that status and with the message that was set
     * by dsc_error_set. */
    dsc_status (*sample)(void *context, int64_t index, int augment, int64_t epoch, float *x, int32_t *label);
    /* Called once by dsc_dataset_close to free the context; NULL (default): the context stays the caller's. */
    void (*destroy)(void *context);
    /* The number of labels per sample; 0 (default): 1. With several, -1 stands for a position without a label. */
    int64_t label_count;
    /* The average fraction of labels that are not -1; 0 (default): 1. The trainer divides gradients by the expected
     * number of labels. (For a set in memory the library counts them.) */
    double labelled;
} dsc_callback_data;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_callback_data_init_sized(dsc_callback_data *data, size_t size);
#define dsc_callback_data_init(data) dsc_callback_data_init_sized((data), sizeof *(data))
/* Creates a data set from a function. The caller closes *out with dsc_dataset_close. If this fails, `destroy` has not
 * been called and the context is still the caller's. */
DSC_API dsc_status dsc_dataset_from_callback(const dsc_callback_data *data, dsc_dataset **out) DSC_MUST_CHECK;

/* ---- what a data set holds ---- */

typedef struct dsc_dataset_info {
    int64_t count, h, w, c, classes;
    const char *name; /* owned by the data set */
} dsc_dataset_info;
/* Returns the size of a data set and its name. For NULL everything is 0, and the name is "". */
DSC_API dsc_dataset_info dsc_dataset_get_info(const dsc_dataset *dataset);
/* Returns the number of labels per sample: 1, or one for each position: the T tokens of a sequence, the h*w pixels of
 * an image, or those of its middle (dsc_data_options.margin). 0 for NULL. */
DSC_API int64_t dsc_dataset_label_count(const dsc_dataset *dataset);
/* For the validation split of masks:DIR, whose samples are tiles of images, returns the number of whole images. 0 for
 * other data sets, whose samples are no tiles, and for NULL. */
DSC_API int64_t dsc_dataset_pictures(const dsc_dataset *dataset);
/* Returns the tokenizer that says what the tokens of a data set mean, owned by the data set; NULL if it has no tokens
 * or their meaning is unknown. */
DSC_API const dsc_tokenizer *dsc_dataset_tokenizer(const dsc_dataset *dataset);
/* Returns the average number of bytes of text per token, which converts a loss per token to bits per byte; 0: unknown.
 * */
DSC_API double dsc_dataset_bytes_per_token(const dsc_dataset *dataset);
/* Returns the name of class `index`, owned by the data set; NULL if its classes have no names, or not that many. */
DSC_API const char *dsc_dataset_class_name(const dsc_dataset *dataset, int64_t index);
/* Writes how the bytes of images become the numbers that the network gets, (value / 255 - mean) / std, to mean[c] and
 * std[c], one for each channel, and returns 1. Returns 0, and writes nothing, if samples are not made of bytes. */
DSC_API int dsc_dataset_normalisation(const dsc_dataset *dataset, double *mean, double *std);
/* Writes sample `index` as h*w*c normalised floats to x, and its labels to `label`, which has room for
 * dsc_dataset_label_count of them; -1 stands for no label. augment 0: the sample as for evaluation; 1: the variant of
 * this epoch. Thread-safe. */
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
    int threads;   /* the number of threads that read, 1 (default) to 1024 */
    void *context; /* passed to both functions */
    /* Called about ten times a second and at the end, with the number of samples read so far and of the bad ones among
     * them. NULL (default): not called. */
    void (*progress)(void *context, int64_t done, int64_t bad);
    /* Called at the end for each bad sample, in the order of their indices. NULL (default): only their number is
     * reported. */
    void (*bad)(void *context, const dsc_bad_sample *sample);
} dsc_check_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_check_options_init_sized(dsc_check_options *options, size_t size);
#define dsc_check_options_init(options) dsc_check_options_init_sized((options), sizeof *(options))
/* Reads every sample once, as for evaluation, and writes to *bad (which may be NULL) how many of them could not be
 * read. Bad samples are not a failure of the call. The functions of the options are called in the calling thread.
 * options may be NULL: the defaults. Fails if there is not enough memory. Blocks. */
DSC_API dsc_status dsc_dataset_check(const dsc_dataset *dataset, const dsc_check_options *options,
                                     int64_t *bad) DSC_MUST_CHECK;

/* ---- loaders ---- */

typedef struct dsc_loader_options {
    size_t size;
    int64_t batch;   /* samples per rank and batch; default 128 */
    int rank, ranks; /* default 0 of 1 */
    int threads;     /* that prepare batches in advance, at least 1; default 1 */
    int depth;       /* batches prepared in advance; default 3 */
    uint64_t seed;   /* of the permutation; default 42 */
    int shuffle;     /* 1 (default): a seeded permutation per epoch; 0: in order */
    int augment;     /* 1 (default): samples are augmented */
    /* 0 (default): an incomplete last global batch is dropped. 1: it is delivered, and all labels of the missing rows
     * are -1. */
    int keep_last;
    dsc_dtype dtype; /* of x: DSC_F32 (default); on a GPU also a half type, except for tokens */
    /* 0 (default): an image file that cannot be read makes dsc_loader_next fail. 1: batches keep their size. With
     * keep_last 0 another sample of the set, a pure function of (seed, epoch, sample), replaces the bad one; with
     * keep_last 1 its row has label -1. dsc_loader_take_bad names the file. Samples of the caller's own data sets are
     * never replaced. */
    int skip_bad;
    /* Further augmentation for training; all 0 (off) by default, except for randaugment_ops. Each sample may be mixed
     * with another one of the epoch: mixup blends in up to half of it, CutMix pastes a box of it, with shares drawn
     * from Beta(alpha, alpha); if both are on, each is used half of the time. dsc_loader_mixed_labels gives the labels.
     * Data sets with several labels per sample refuse all of them. */
    double mixup, cutmix;  /* alpha, up to 100 */
    double random_erasing; /* probability that a box of 2 to 33 % of the area is set to 0 */
    double randaugment;    /* magnitude of RandAugment's operations, up to 30; for images made of bytes */
    int randaugment_ops;   /* operations per sample; default 2 */
    /* webdataset. Above 0: the shards are shuffled, and then the samples within each block of this many, so that files
     * are read almost in their order. 0 (default): all samples are shuffled at once. */
    int64_t shuffle_buffer;
} dsc_loader_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_loader_options_init_sized(dsc_loader_options *options, size_t size);
#define dsc_loader_options_init(options) dsc_loader_options_init_sized((options), sizeof *(options))

/* One rank's part of a global batch. The tensors belong to the loader and are valid until the next call of
 * dsc_loader_next. */
typedef struct dsc_batch {
    dsc_tensor x;      /* [batch, h, w, c] */
    dsc_tensor labels; /* I32 [batch * dsc_dataset_label_count], those of a sample next to each other */
    int64_t epoch;
    int64_t position; /* the samples of this epoch, over all ranks, that came before this batch */
} dsc_batch;

/* Creates a loader, which delivers batches in memory of `device`; on a GPU x and labels have the same address for every
 * batch. With p ranks and b samples per rank and batch, global batch t of an epoch consists of the samples
 * [t p b, (t + 1) p b) of its permutation; rank r gets the r-th block of b. One epoch follows the other without end.
 * The data set stays the caller's and must outlive the loader. options may be NULL: the defaults. Returns DSC_E_INVALID
 * if an epoch has no complete global batch (keep_last 0). Not collective. */
DSC_API dsc_status dsc_loader_create(const dsc_dataset *dataset, dsc_device *device,
                                     const dsc_loader_options *options, dsc_loader **out) DSC_MUST_CHECK;
/* Destroys a loader and sets *loader to NULL. Accepts NULL and *loader == NULL. */
DSC_API void dsc_loader_destroy(dsc_loader **loader);
/* Returns the number of batches per epoch with this number of ranks. */
DSC_API int64_t dsc_loader_batches(const dsc_loader *loader);
/* Continues at (epoch, position): the next batch starts with that sample of that epoch's permutation, or with the next
 * epoch if less than a global batch is left and keep_last is 0. */
DSC_API dsc_status dsc_loader_seek(dsc_loader *loader, int64_t epoch, int64_t position) DSC_MUST_CHECK;
/* Writes the next batch to *batch, for work that is put into `queue` from now on. Blocks until the batch is prepared,
 * but not until it has been copied to the device. Failures of the preparing threads are returned here. */
DSC_API dsc_status dsc_loader_next(dsc_loader *loader, dsc_queue *queue, dsc_batch *batch) DSC_MUST_CHECK;

/* For mixup and CutMix: writes to *others the labels of the samples that were mixed into the last batch (I32[batch]),
 * and to *shares their shares (F32[batch], 0 to 1/2), as dsc_exec_mix_labels takes them, and returns 1. The tensors are
 * valid as long as the batch. Returns 0, and writes nothing, if the loader does not mix samples or has not delivered a
 * batch. */
DSC_API int dsc_loader_mixed_labels(const dsc_loader *loader, dsc_tensor *others, dsc_tensor *shares);

/* With skip_bad: writes the samples of the batches delivered so far that could not be read to out[room], in the order
 * of the batches, and returns how many it wrote. The loader forgets those that it has returned. Bad samples that were
 * drawn as replacements are not listed, so each sample is reported at most once per epoch, whatever the number of
 * ranks. out NULL: forgets all of them, and returns how many there were. */
DSC_API int64_t dsc_loader_take_bad(dsc_loader *loader, dsc_bad_sample *out, int64_t room);

#ifdef __cplusplus
}
#endif
#endif
