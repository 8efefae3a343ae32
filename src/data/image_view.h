/* An encoded image as a sample: what is cut out of it, how large that becomes, and its normalisation.
 *
 * Training: a random resized crop to S x S and a flip. Evaluation: the shorter side to round(S * 256 / 224), the
 * middle S x S of it. Channels are normalised by ImageNet's usual mean and standard deviation. The options of the data
 * set may say otherwise. */
#ifndef DSC_DATA_IMAGE_VIEW_H
#define DSC_DATA_IMAGE_VIEW_H

#include "data/dataset.h"
#include "data/image_decode.h"

enum { DSC_IMAGE_BYTES = 1 << 28 }; /* largest size of an encoded image */
extern const double dsc_image_mean[3], dsc_image_std[3];

#define DSC_IMAGE_ENDINGS ".jpg, .jpeg, .png, .webp"

/* How an image becomes the input of a model, without random choices. */
typedef struct dsc_image_form {
    int64_t size; /* the input is size x size x channels */
    int64_t side; /* the image is scaled so that its shorter side is this long, and the middle is taken */
    int channels; /* 3; or 1, which is grey: the brightness of the colours */
    double mean[3], std[3];
} dsc_image_form;

/* 1 when a file of this name is an image: it ends in .jpg, .jpeg, .png or .webp, in either case. */
int dsc_image_has_name(const char *name);
/* Sets *side to S: that of the options, or 224. Fails when it, or another option about the form of images, is out of
 * range. `kind` is for messages. */
dsc_status dsc_image_side(const char *kind, const dsc_data_options *options, int64_t *side) DSC_MUST_CHECK;
/* Sets the shape of the data set's samples to S x S x 3, and their form and normalisation as the options say. */
void dsc_image_form_samples(dsc_dataset *dataset, const dsc_data_options *options, int64_t side);
/* Makes the sample x[S,S,3] of such a data set from an encoded image. */
dsc_status dsc_image_present(const dsc_dataset *dataset, const dsc_encoded *encoded, dsc_sample_key key,
                             dsc_scratch *scratch, float *x) DSC_MUST_CHECK;
/* round(S * 256 / 224) */
int64_t dsc_image_evaluation_side(int64_t size);
/* Makes the input x[size,size,channels] of a model from an encoded image. */
dsc_status dsc_image_evaluate(const dsc_encoded *encoded, const dsc_image_form *form, dsc_scratch *scratch,
                              float *x) DSC_MUST_CHECK;

#endif
