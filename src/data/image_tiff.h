/* TIFF files, page by page. */
#ifndef DSC_DATA_IMAGE_TIFF_H
#define DSC_DATA_IMAGE_TIFF_H

#include "data/files.h"

#define DSC_TIFF_ENDINGS ".tif, .tiff"

/* 1 when a file of this name is a TIFF: it ends in .tif or .tiff, in either case. */
int dsc_tiff_has_name(const char *name);

/* A file that is open at one of its pages. */
typedef struct dsc_tiff dsc_tiff;

/* Opens a file at its first page. DSC_E_UNSUPPORTED when the build lacks libtiff, or the machine does. */
dsc_status dsc_tiff_open(const char *path, dsc_tiff **out) DSC_MUST_CHECK;
void dsc_tiff_close(dsc_tiff **tiff);
/* The index of the page that the file is at, counted from 0. */
int64_t dsc_tiff_at(const dsc_tiff *tiff);
/* Goes to the next page; *found is 0 when there is none. */
dsc_status dsc_tiff_next(dsc_tiff *tiff, int *found) DSC_MUST_CHECK;
/* Decodes the page to out[h, w, 3]. *bits: bits per value in the file. */
dsc_status dsc_tiff_decode(dsc_tiff *tiff, dsc_bytes *out, int64_t *h, int64_t *w, int *bits) DSC_MUST_CHECK;
/* The number of pages. If the list of pages is damaged, or the file cannot be opened at all, this includes the page that
 * cannot be found, so that an attempt to read all pages reports what is wrong. */
dsc_status dsc_tiff_count(const char *path, int64_t *count) DSC_MUST_CHECK;

#endif
